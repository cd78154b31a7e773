#include "kernels/activation_run.h"

#include <algorithm>
#include <map>

#include "kernels/reference/operations.h"
#include "kernels/steps.h"
#include "kernels/whole_text.h"

namespace runnel::kernels {

namespace {

bool has_matrix(const Step &step) {
    bool found = false;
    visit_matrices(step, [&](WeightId, Use) { found = true; });
    return found;
}

std::span<const float> floats_of(const Program &program, WeightId id) {
    if (id == kNoWeight) return {};
    const Weight &w = program.weights[static_cast<size_t>(id)];
    return {reinterpret_cast<const float *>(w.data), static_cast<size_t>(w.rows * w.cols * w.count)};
}

}  // namespace

// Computes the inputs of the down matrices of single experts as ordinary steps: one program part per step and expert.
class ActivationRun::HiddenOfExperts {
  public:
    HiddenOfExperts(const Program &program, const Device &device, int32_t context) : program_(program) {
        for (size_t i = 0; i < program.steps.size(); ++i)
            if (const auto *step = std::get_if<Experts>(&program.steps[i])) add(*step, i);
        backend_ = device.backend();
        backend_->load(experts_, {}, context);
    }

    // Write the inputs of `count` tokens to input(), call run() for an expert, then read hidden().
    SlotRows input(size_t step) { return backend_->exchange(steps_.at(step).in); }
    bool run(size_t step, size_t expert, int32_t count, const std::atomic<bool> *cancel) {
        const std::vector<int32_t> ids(static_cast<size_t>(count), 0);
        SequenceSpan sequence{0, count, 0, {}};
        Batch batch{ids, ids, {&sequence, 1}, {}, cancel};
        batch.part = static_cast<int32_t>(steps_.at(step).first_part + expert);
        return backend_->execute(batch, {});
    }
    SlotRows hidden(size_t step) { return backend_->exchange(steps_.at(step).out); }

  private:
    struct Place {
        size_t first_part;
        Slot in, out;
    };

    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    Slot slot(int64_t width) {
        experts_.slots.push_back({"", width});
        return static_cast<Slot>(experts_.slots.size() - 1);
    }
    // Rows [first, first + rows) of one expert's matrix.
    WeightId slice(WeightId id, size_t expert, int64_t first, int64_t rows) {
        if (id == kNoWeight) return kNoWeight;
        Weight w = weight(id);
        w.data = w.matrix(static_cast<int64_t>(expert)) +
                 gguf::row_bytes(w.type, w.cols) * static_cast<size_t>(first);
        w.rows = rows, w.count = 1;
        return push(w);
    }
    // Values [first, first + count) of one expert's bias, divided by the factor of the expert's matrix, by which
    // Linear multiplies the bias as well.
    WeightId bias_slice(WeightId id, size_t expert, int64_t first, int64_t count, float factor) {
        if (id == kNoWeight) return kNoWeight;
        Weight w = weight(id);
        w.data = w.matrix(static_cast<int64_t>(expert)) + static_cast<size_t>(first) * sizeof(float);
        w.cols = count, w.count = 1;
        if (factor != 1) {
            const auto *from = reinterpret_cast<const float *>(w.data);
            std::vector<float> values(from, from + count);
            for (float &value : values) value /= factor;
            const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
            experts_.constants.push_back(kept);
            w.data = reinterpret_cast<const std::byte *>(kept->data());
        }
        return push(w);
    }
    WeightId push(const Weight &w) {
        experts_.weights.push_back(w);
        return static_cast<WeightId>(experts_.weights.size() - 1);
    }

    void add(const Experts &step, size_t index) {
        const int64_t hidden = weight(step.down).cols;
        const bool merged = has_merged_gate(program_, step);
        const bool gated = merged || step.up != kNoWeight;
        // Steps of one shape share their slots.
        const auto [found, is_new] =
            shapes_.try_emplace({weight(step.gate).cols, hidden}, std::array<Slot, 3>{});
        if (is_new) found->second = {slot(weight(step.gate).cols), slot(hidden), slot(hidden)};
        const auto [in, first, second] = found->second;
        steps_[index] = {experts_.parts.size(), in, first};
        for (size_t e = 0; e < static_cast<size_t>(weight(step.down).count); ++e) {
            const std::span<const float> gate_scales = floats_of(program_, step.gate_scales),
                                         up_scales = floats_of(program_, step.up_scales);
            const float of_gate = gate_scales.empty() ? 1 : gate_scales[e],
                        of_up = up_scales.empty() ? 1 : up_scales[e];
            Linear linear{in, {}};
            linear.parts.push_back({slice(step.gate, e, 0, hidden),
                                    bias_slice(step.gate_bias, e, 0, hidden, of_gate), first, kNoSlot,
                                    of_gate});
            if (merged)
                linear.parts.push_back({slice(step.gate, e, hidden, hidden),
                                        bias_slice(step.gate_bias, e, hidden, hidden, of_gate), second,
                                        kNoSlot, of_gate});
            else if (gated)
                linear.parts.push_back({slice(step.up, e, 0, hidden),
                                        bias_slice(step.up_bias, e, 0, hidden, of_up), second, kNoSlot,
                                        of_up});
            experts_.steps.push_back(linear);
            experts_.steps.push_back(
                Activation{first, gated ? second : kNoSlot, first, step.act, step.parameters});
            experts_.parts.push_back({experts_.steps.size(), {in}, {first}});
        }
    }

    const Program &program_;
    Program experts_;
    std::map<std::pair<int64_t, int64_t>, std::array<Slot, 3>> shapes_;
    std::map<size_t, Place> steps_;  // by index of the step in program_
    std::unique_ptr<Backend> backend_;
};

std::vector<std::vector<WeightId>> matrices_by_input(const Step &step) {
    if (const auto *linear = std::get_if<Linear>(&step)) {
        std::vector<WeightId> all;
        for (const auto &part : linear->parts) all.push_back(part.weight);
        return {all};
    }
    if (const auto *heads = std::get_if<HeadLinear>(&step)) return {{heads->weight}};
    if (const auto *experts = std::get_if<Experts>(&step))
        return {
            experts->up == kNoWeight ? std::vector{experts->gate} : std::vector{experts->gate, experts->up},
            {experts->down}};
    if (const auto *logits = std::get_if<Logits>(&step)) return {{logits->weight}};
    return {};
}

ActivationRun::ActivationRun(const Program &program, const Device &device, int32_t context, bool with_output,
                             ActivationSink sink)
    : program_(program), context_(context), with_output_(with_output), sink_(std::move(sink)) {
    // The last part, the logits, is never run.
    begins_ = {0};
    for (size_t i = 1; i < program_.steps.size(); ++i)
        if (has_matrix(program_.steps[i])) begins_.push_back(i);
    program_.parts.clear();
    for (size_t p = 0; p < begins_.size(); ++p)
        program_.parts.push_back({p + 1 < begins_.size() ? begins_[p + 1] : program_.steps.size(), {}, {}});
    backend_ = device.backend();
    backend_->load(program_, cache_of_one(program_, context), context);
    if (std::ranges::any_of(program_.steps, selects_experts))
        hidden_ = std::make_unique<HiddenOfExperts>(program_, device, context);
}

ActivationRun::~ActivationRun() = default;

std::span<const float> ActivationRun::row(Slot slot, size_t token) {
    const SlotRows rows = backend_->exchange(slot);
    return {rows.data + static_cast<int64_t>(token) * rows.stride,
            static_cast<size_t>(program_.slots[static_cast<size_t>(slot)].width)};
}

bool ActivationRun::run(std::span<const int32_t> tokens, const std::atomic<bool> *cancel) {
    tokens_ = tokens.size();
    WholeText text(program_, tokens, context_, cancel);
    for (size_t p = 0; p < begins_.size(); ++p) {
        const Step &step = program_.steps[begins_[p]];
        if (const auto *linear = std::get_if<Linear>(&step)) observe(*linear);
        if (const auto *heads = std::get_if<HeadLinear>(&step)) observe(*heads);
        if (const auto *experts = std::get_if<Experts>(&step))
            if (!observe(*experts, begins_[p], cancel)) return false;
        if (const auto *logits = std::get_if<Logits>(&step)) {
            for (size_t t = 0; t < tokens_ && with_output_; ++t)
                sink_(program_.weights[static_cast<size_t>(logits->weight)].name, 0, 1, row(logits->in, t));
            break;
        }
        text.batch.part = static_cast<int32_t>(p);
        if (!backend_->execute(text.batch, {})) return false;
    }
    return true;
}

void ActivationRun::observe(const Linear &step) {
    // Parts of one tensor (a fused Q, K and V) have the same input: report it once.
    std::vector<std::string_view> names;
    for (const Linear::Part &part : step.parts) {
        const std::string_view name = program_.weights[static_cast<size_t>(part.weight)].name;
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    for (size_t t = 0; t < tokens_; ++t)
        for (const std::string_view name : names) sink_(name, 0, 1, row(step.in, t));
}

void ActivationRun::observe(const HeadLinear &step) {
    const Weight &w = program_.weights[static_cast<size_t>(step.weight)];
    for (size_t t = 0; t < tokens_; ++t)
        for (int64_t head = 0; head < w.count; ++head)
            sink_(w.name, head, w.count,
                  row(step.in, t)
                      .subspan(static_cast<size_t>(step.from.first + head * step.from.stride),
                               static_cast<size_t>(w.cols)));
}

bool ActivationRun::observe(const Experts &step, size_t index, const std::atomic<bool> *cancel) {
    const auto weight = [&](WeightId id) -> const Weight & {
        return program_.weights[static_cast<size_t>(id)];
    };
    const std::span<const float> bias = floats_of(program_, step.routing.selection_bias),
                                 scales = floats_of(program_, step.routing.expert_scales);
    const std::vector<double> wide_bias(bias.begin(), bias.end());
    const auto experts = static_cast<size_t>(weight(step.down).count);
    std::vector<std::vector<std::pair<size_t, float>>> tokens_of(experts);  // with their weights
    for (size_t t = 0; t < tokens_; ++t) {
        const std::span<const float> logits = row(step.logits, t);
        const std::vector<double> wide(logits.begin(), logits.end());
        std::vector<double> chosen;
        if (step.chosen != kNoSlot)
            for (const float number : row(step.chosen, t)) chosen.push_back(double{number});
        for (const auto &[e, w] : reference::route(wide, wide_bias, step.routing, chosen))
            tokens_of[e].emplace_back(t, static_cast<float>(w * (scales.empty() ? 1.0 : double{scales[e]})));
    }
    const auto count = static_cast<int64_t>(experts);
    for (size_t e = 0; e < experts; ++e) {
        if (tokens_of[e].empty()) continue;
        const auto expert = static_cast<int64_t>(e);
        const SlotRows in = hidden_->input(index);
        const auto width = static_cast<size_t>(weight(step.gate).cols);
        for (size_t i = 0; i < tokens_of[e].size(); ++i) {
            const auto [t, w] = tokens_of[e][i];
            const std::span<float> x(in.data + static_cast<int64_t>(i) * in.stride, width);
            std::ranges::copy(row(step.in, t), x.begin());
            if (step.weights_on_input)
                for (float &value : x) value *= w;
            sink_(weight(step.gate).name, expert, count, x);
            if (step.up != kNoWeight) sink_(weight(step.up).name, expert, count, x);
        }
        if (!hidden_->run(index, e, static_cast<int32_t>(tokens_of[e].size()), cancel)) return false;
        const SlotRows out = hidden_->hidden(index);
        for (size_t i = 0; i < tokens_of[e].size(); ++i)
            sink_(weight(step.down).name, expert, count,
                  {out.data + static_cast<int64_t>(i) * out.stride,
                   static_cast<size_t>(weight(step.down).cols)});
    }
    return true;
}

}  // namespace runnel::kernels
