#include "kernels/cuda/experts/expert_runner.h"

#include <algorithm>

#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/steps/elementwise.h"

namespace runnel::kernels::cuda {
namespace {

constexpr const char *kMemoryName = "experts";

// In arrivals_: the router's counter, then those of the sums, then those of gate and up.
constexpr int64_t kSumArrivals = 1, kOtherArrivals = kSumArrivals + kLinearTokens;

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
    int64_t arrivals = 0;
};

ExpertRunner::Sizes ExpertRunner::sizes(const Plan &plan, int32_t max_tokens) {
    Sizes all;
    int64_t few = 0;  // LinearParams::arrivals
    for (const Op &op : plan.ops) {
        const auto *experts = std::get_if<ExpertsOp>(&op);
        if (experts == nullptr) continue;
        const int64_t rows = int64_t{max_tokens} * experts->step.routing.used;
        all.rows = std::max(all.rows, rows);
        all.groups = std::max(all.groups, std::min(rows, experts->experts + rows / kSmallGroupTokens));
        if (!experts->in.empty()) all.hidden = std::max(all.hidden, rows * stride_of(2 * experts->width));
        if (experts->step.down == kNoWeight) continue;
        few = std::max(few, kPreparedTokens * experts->step.routing.used * col_blocks(experts->width));
        all.results = std::max(all.results, rows * stride_of(experts->out_width));
        all.packed = std::max(all.packed, activation_bytes(experts->width, rows, forms_of(experts->down)));
    }
    all.arrivals = kOtherArrivals + few;
    return all;
}

size_t ExpertRunner::bytes(const Program &program, const Plan &plan, int32_t max_tokens) {
    const Sizes s = sizes(plan, max_tokens);
    if (s.rows == 0) return 0;
    return PlaceRunner::bytes(program, plan) +
           static_cast<size_t>(s.rows * 6 * 4 + s.groups * 2 * static_cast<int64_t>(sizeof(TokenGroup)) +
                               (s.hidden + s.results + s.arrivals) * 4 + s.packed + 8);
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
    arrivals_ = memory(4 * s.arrivals);
    stream.fill(arrivals_.data(), 0, arrivals_.size());
    prepare(route_kernel().handle, kRouteShared);
    prepare(group_rows_kernel().handle, kGroupRowsShared);
    prepare(route_groups_kernel().handle, kRouteGroupsShared);
    prepare(combine_kernel().handle, kCombineShared);
    for (const Op &op : plan.ops)
        if (const auto *experts = std::get_if<ExpertsOp>(&op)) {
            if (experts->router) prepare_linear(device, experts->router->format, max_tokens);
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
    sum(launcher, op, operands);
}

// Few tokens: the same launch computes the logits and groups the rows (at_once).
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
    const bool has_router = operands.router.matrices > 0;
    if (at_once)
        return launcher.run_exactly(route_groups_kernel(), has_router ? router_blocks(op.experts) : 1,
                                    kRouteGroupsShared,
                                    {params, group_params(op, weights, operands.tokens * r.used),
                                     has_router ? router_matrix(operands) : RouterMatrix{}});
    if (has_router) launch_linear(launcher, operands.router, op.router->format);
    launcher.run_exactly(route_kernel(), (operands.tokens + kRouteTokens - 1) / kRouteTokens, kRouteShared,
                         params);
}

RouterMatrix ExpertRunner::router_matrix(const Operands &operands) const {
    const LinearParams &p = operands.router;
    const LinearMatrix &m = p.matrix[0];
    return {m.tiles,
            m.bias,
            p.x_f32,
            p.x_stride,
            p.cols,
            m.scale,
            m.out,
            arrivals_.as<uint32_t>(),
            operands.prepare_input};
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
        if (prepares_hidden(op, operands.tokens)) {
            p.prepare = quantize_hidden(op, operands, rows.rows);
            p.arrivals = arrivals_.as<uint32_t>() + kOtherArrivals;
        }
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
    launcher.run(combine_kernel(), combine_blocks(rows, width), kCombineShared,
                 {hidden_.as<const float>(), rows_.as<const int32_t>(), nullptr, nullptr, operands.out.data,
                  stride_of(2 * op.width), 0, op.width, rows, 1, width});
}

// Whether the launch of gate and up quantizes its output for `down`.
bool ExpertRunner::prepares_hidden(const ExpertsOp &op, int32_t tokens) const {
    if (op.step.down == kNoWeight || !op.fused || tokens > kPreparedTokens) return false;
    const ActivationForms forms = forms_of(op.down);
    return forms.integers && !forms.halves;
}

QuantizeParams ExpertRunner::quantize_hidden(const ExpertsOp &op, const Operands &operands,
                                             int32_t rows) const {
    const bool given = op.in.empty();  // h is the input, one row for each pair
    return {given ? operands.in.data : hidden_.as<const float>(),
            nullptr,
            nullptr,
            0,
            static_cast<int32_t>(op.width),
            given ? op.width : stride_of(2 * op.width),
            place_activations(packed_.data(), op.width, rows, forms_of(op.down))};
}

void ExpertRunner::down(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                        const Operands &operands, const ExpertRows &rows, bool last) {
    const QuantizeParams hidden = quantize_hidden(op, operands, rows.rows);
    LinearParams p = linear_params(op.width);
    if (op.in.empty()) p.sources = sources_.as<const int32_t>();
    if (op.places == 0) p.x_rows = rows.rows;
    p.x = hidden.out;
    if (forms_of(op.down).any() && !prepares_hidden(op, operands.tokens))
        launcher.run_exactly(quantize_kernel(), rows.rows, kQuantizeShared, hidden);
    p.x_f32 = hidden.x;
    p.x_stride = hidden.x_stride;
    p.matrices = 1;
    p.matrix[0].tiles = weights.tiles(op.step.down);
    p.matrix[0].bias = bias(op, weights, op.step.down_bias);
    p.matrix[0].rows = static_cast<int32_t>(op.out_width);
    p.matrix[0].out = results_.as<float>();
    p.matrix[0].out_stride = stride_of(op.out_width);
    if (last) p.ahead = operands.ahead;
    launch_experts(launcher, p, op.down, rows);
}

void ExpertRunner::sum(Launcher &launcher, const ExpertsOp &op, const Operands &operands) {
    const auto width = static_cast<int32_t>(op.out_width);
    CombineParams p{results_.as<const float>(),
                    rows_.as<const int32_t>(),
                    op.step.weights_on_input ? nullptr : weights_.as<const float>(),
                    operands.add.data,
                    operands.out.data,
                    stride_of(width),
                    operands.add.stride,
                    operands.out.stride,
                    operands.tokens,
                    op.step.routing.used,
                    width};
    const bool has_next = operands.prepare.x != nullptr,
               prepares = has_next && operands.tokens <= kLinearTokens;
    if (prepares) p.prepare = operands.prepare, p.arrivals = arrivals_.as<uint32_t>() + kSumArrivals;
    launcher.run(combine_kernel(), combine_blocks(operands.tokens, width), kCombineShared, p);
    if (has_next && !prepares)
        launcher.run_exactly(quantize_kernel(), operands.tokens, kQuantizeShared, operands.prepare);
}

}  // namespace runnel::kernels::cuda
