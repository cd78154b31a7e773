#include "kernels/cuda/experts/expert_runner.h"

#include <algorithm>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/steps/elementwise.h"

namespace runnel::kernels::cuda {
namespace {

constexpr const char *kMemoryName = "experts";

RouteScore score_of(Routing::Score score) {
    switch (score) {
        case Routing::Score::Sigmoid:
            return RouteScore::Sigmoid;
        case Routing::Score::SelectedSoftmax:
            return RouteScore::SelectedSoftmax;
        case Routing::Score::SparseMixer:
            return RouteScore::SparseMixer;
        case Routing::Score::SqrtSoftplus:
            return RouteScore::SqrtSoftplus;
        default:
            return RouteScore::Softmax;
    }
}

// Most rows of a group where experts have few rows: of some formats (Q4_K, Q5_K), more blocks of the kernel for small groups fit
// on a multiprocessor. An expert with more rows is read again, from L2.
int32_t few_rows(int32_t rows, int32_t experts) {
    return rows <= 2 * experts ? kSmallGroupTokens : kLinearGroupTokens;
}

}  // namespace

// The largest sizes over all steps.
struct ExpertRunner::Sizes {
    int64_t rows = 0, groups = 0;     // groups: of the longer list
    int64_t hidden = 0, results = 0;  // floats
    int64_t packed = 0;               // bytes
};

ExpertRunner::Sizes ExpertRunner::sizes(const Plan &plan, int32_t max_tokens) {
    Sizes all;
    for (const Op &op : plan.ops) {
        const auto *experts = std::get_if<ExpertsOp>(&op);
        if (experts == nullptr) continue;
        const int64_t rows = int64_t{max_tokens} * experts->step.routing.used;
        all.rows = std::max(all.rows, rows);
        all.groups = std::max(all.groups, std::min(rows, experts->experts + rows / kSmallGroupTokens));
        if (!experts->in.empty()) all.hidden = std::max(all.hidden, rows * stride_of(2 * experts->width));
        if (experts->step.down == kNoWeight) continue;
        all.results = std::max(all.results, rows * stride_of(experts->out_width));
        all.packed = std::max(all.packed, activation_bytes(experts->width, rows, forms_of(experts->down)));
    }
    return all;
}

size_t ExpertRunner::bytes(const Program &program, const Plan &plan, int32_t max_tokens) {
    const Sizes s = sizes(plan, max_tokens);
    if (s.rows == 0) return 0;
    return PlaceRunner::bytes(program, plan) +
           static_cast<size_t>(s.rows * 6 * 4 + s.groups * 2 * static_cast<int64_t>(sizeof(TokenGroup)) +
                               (s.hidden + s.results) * 4 + s.packed + 8);
}

ExpertRunner::ExpertRunner(Stream &stream, const DeviceProperties &device, const Program &program,
                           const Plan &plan, int32_t max_tokens)
    : places_(stream, program, plan) {
    const Sizes s = sizes(plan, max_tokens);
    if (s.rows == 0) return;
    const auto memory = [](int64_t bytes) {
        return bytes > 0 ? DeviceMemory(static_cast<size_t>(bytes), kMemoryName) : DeviceMemory();
    };
    for (DeviceMemory *m : {&chosen_, &weights_, &sources_, &rows_, &gate_weights_, &up_weights_})
        *m = memory(4 * s.rows);
    for (DeviceMemory *m : {&few_, &many_}) *m = memory(s.groups * static_cast<int64_t>(sizeof(TokenGroup)));
    counts_ = memory(2 * sizeof(int32_t));
    hidden_ = memory(4 * s.hidden);
    results_ = memory(4 * s.results);
    // A round also quantizes the rows of later ones, which nothing has written yet.
    if (PlaceRunner::bytes(program, plan) > 0 && s.hidden > 0) stream.fill(hidden_.data(), 0, hidden_.size());
    packed_ = memory(s.packed);
    prepare(route_kernel().handle, kRouteShared);
    prepare(group_rows_kernel().handle, kGroupRowsShared);
    prepare(route_groups_kernel().handle, kRouteGroupsShared);
    prepare(combine_kernel().handle, 0);
    for (const Op &op : plan.ops)
        if (const auto *experts = std::get_if<ExpertsOp>(&op)) {
            for (const ExpertsOp::In &in : experts->in) prepare_experts(device, in.format, max_tokens);
            if (experts->step.down != kNoWeight) prepare_experts(device, experts->down, max_tokens);
        }
}

void ExpertRunner::enqueue(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                           const Operands &operands) {
    const Experts &step = op.step;
    const int32_t rows = operands.tokens * step.routing.used;
    const ExpertRows groups{operands.tokens,
                            op.experts,
                            rows,
                            few_rows(rows, op.experts),
                            few_.as<const TokenGroup>(),
                            many_.as<const TokenGroup>(),
                            counts_.as<const int32_t>(),
                            counts_.as<const int32_t>() + 1};
    const bool routed_at_once = operands.tokens <= kRouteTokens && op.places == 0;
    route(launcher, op, weights, operands, routed_at_once);
    const int32_t rounds = op.places > 0 ? expert_rounds(rows, op.experts, op.places) : 1;
    for (int32_t round = 0; round < rounds; ++round) {
        if (!routed_at_once) group_rows(launcher, op, weights, rows, round);
        if (!op.in.empty()) gate_and_up(launcher, op, weights, operands, groups);
        if (step.down == kNoWeight) return write_hidden(launcher, op, operands, rows);
        down(launcher, op, weights, operands, groups, round + 1 == rounds);
    }
    const auto width = static_cast<int32_t>(op.out_width);
    launcher.run(combine_kernel(), (int64_t{operands.tokens} * width + 255) / 256, 0,
                 {results_.as<const float>(), rows_.as<const int32_t>(),
                  step.weights_on_input ? nullptr : weights_.as<const float>(), operands.add.data,
                  operands.out.data, stride_of(width), operands.add.stride, operands.out.stride,
                  operands.tokens, step.routing.used, width});
}

// Few tokens: their rows are grouped by the same launch (at_once).
void ExpertRunner::route(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                         const Operands &operands, bool at_once) {
    const Routing &r = op.step.routing;
    const RouteParams params{operands.logits.data,
                             operands.logits.stride,
                             weights.floats(r.selection_bias),
                             weights.floats(r.expert_scales),
                             operands.tokens,
                             op.experts,
                             r.used,
                             r.groups,
                             r.groups_used,
                             r.group_best,
                             score_of(r.score),
                             r.normalize,
                             r.scale,
                             chosen_.as<int32_t>(),
                             weights_.as<float>(),
                             operands.chosen.data,
                             operands.chosen.stride};
    if (at_once)
        launcher.run_exactly(route_groups_kernel(), 1, kRouteGroupsShared,
                             {params, group_params(op, weights, operands.tokens * r.used)});
    else
        launcher.run_exactly(route_kernel(), (operands.tokens + kRouteTokens - 1) / kRouteTokens,
                             kRouteShared, params);
}

GroupRowsParams ExpertRunner::group_params(const ExpertsOp &op, const DeviceWeights &weights,
                                           int32_t rows) const {
    return {chosen_.as<const int32_t>(),
            op.step.weights_on_input ? weights_.as<const float>() : nullptr,
            {weights.floats(op.step.gate_scales), weights.floats(op.step.up_scales)},
            rows,
            op.in.empty() ? 1 : op.step.routing.used,
            op.experts,
            sources_.as<int32_t>(),
            {gate_weights_.as<float>(), up_weights_.as<float>()},
            rows_.as<int32_t>(),
            few_.as<TokenGroup>(),
            many_.as<TokenGroup>(),
            counts_.as<int32_t>(),
            counts_.as<int32_t>() + 1,
            few_rows(rows, op.experts)};
}

void ExpertRunner::group_rows(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                              int32_t rows, int32_t round) {
    GroupRowsParams params = group_params(op, weights, rows);
    if (op.places == 0)
        return launcher.run_exactly(group_rows_kernel(), op.experts, kGroupRowsShared, params);
    params.places = places_.enqueue(launcher, op, weights, chosen_.as<const int32_t>(), rows, round);
    // Places were filled by the launch before: what follows may read them as weights, so it starts when all that is done.
    launcher.run_after_all(group_rows_kernel(), op.experts, kGroupRowsShared, params);
}

// Writes h into hidden_. Without a fused activation, gate and up are first written there side by side.
void ExpertRunner::gate_and_up(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                               const Operands &operands, const ExpertRows &rows) {
    const Experts &step = op.step;
    const int64_t stride = stride_of(2 * op.width);
    for (const ExpertsOp::In &in : op.in) {
        LinearParams p = linear_params(op.in_width);
        p.x = operands.input;
        p.x_f32 = operands.in.data;
        p.x_stride = operands.in.stride;
        p.gate = op.fused ? LinearGate::Silu : LinearGate::None;
        p.sources = sources_.as<const int32_t>();
        if (op.places == 0) p.x_rows = operands.tokens;
        if (step.weights_on_input || op.scaled)
            p.row_weights = (in.of_up ? up_weights_ : gate_weights_).as<const float>();
        for (const ExpertsOp::Part &part : in.parts) {
            LinearMatrix &m = p.matrix[p.matrices++];
            m.tiles = weights.tiles(part.weight);
            m.bias = bias(op, weights, part.bias);
            m.rows = static_cast<int32_t>(part.rows);
            m.out = hidden_.as<float>() + part.at;
            m.out_stride = stride;
        }
        launch_experts(launcher, p, in.format, rows);
    }
    if (op.fused) return;
    const float *up = op.gated ? hidden_.as<const float>() + op.width : nullptr;
    const auto &[positive, negative, beta, eps] = step.parameters;
    launcher.run(activate_kernel(), rows.rows * ((op.width + 255) / 256), 0,
                 {hidden_.as<const float>(), up, hidden_.as<float>(), stride, stride, stride,
                  static_cast<int32_t>(op.width), rows.rows, op.activation, positive, negative, beta, eps});
}

// Copies h to the output, where pairs have the distance op.width.
void ExpertRunner::write_hidden(Launcher &launcher, const ExpertsOp &op, const Operands &operands,
                                int32_t rows) {
    const auto width = static_cast<int32_t>(op.width);
    launcher.run(combine_kernel(), (int64_t{rows} * width + 255) / 256, 0,
                 {hidden_.as<const float>(), rows_.as<const int32_t>(), nullptr, nullptr, operands.out.data,
                  stride_of(2 * op.width), 0, op.width, rows, 1, width});
}

void ExpertRunner::down(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                        const Operands &operands, const ExpertRows &rows, bool last) {
    const bool given = op.in.empty();  // h is the input, one row for each pair
    const float *hidden = given ? operands.in.data : hidden_.as<const float>();
    const int64_t stride = given ? op.width : stride_of(2 * op.width);
    LinearParams p = linear_params(op.width);
    if (given) p.sources = sources_.as<const int32_t>();
    if (op.places == 0) p.x_rows = rows.rows;
    if (const ActivationForms forms = forms_of(op.down); forms.any()) {
        p.x = place_activations(packed_.data(), op.width, rows.rows, forms);
        launcher.run_exactly(quantize_kernel(), rows.rows, kQuantizeShared,
                             {hidden, nullptr, nullptr, 0, static_cast<int32_t>(op.width), stride, p.x});
    }
    p.x_f32 = hidden;
    p.x_stride = stride;
    p.matrices = 1;
    p.matrix[0].tiles = weights.tiles(op.step.down);
    p.matrix[0].bias = bias(op, weights, op.step.down_bias);
    p.matrix[0].rows = static_cast<int32_t>(op.out_width);
    p.matrix[0].out = results_.as<float>();
    p.matrix[0].out_stride = stride_of(op.out_width);
    if (last) p.ahead = operands.ahead;
    launch_experts(launcher, p, op.down, rows);
}

}  // namespace runnel::kernels::cuda
