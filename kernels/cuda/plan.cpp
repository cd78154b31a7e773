#include "kernels/cuda/plan.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/indexer/indexer.h"
#include "kernels/cuda/scan/scan.h"
#include "kernels/cuda/steps/rotate.h"
#include "kernels/cuda/steps/streams.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

[[noreturn]] void lack_kernel(const std::string &what) {
    throw BackendError(BackendError::Kind::NoKernel, "the GPU has no kernel for " + what + " yet");
}

constexpr int64_t kMaxHeads = 4096;  // keeps the number of rows, one per head and token, within an int32

void expect(bool condition, const std::string &what) {
    if (!condition) lack_kernel(what);
}

class Planner {
  public:
    explicit Planner(const Program &program) : program_(program) {
        plan_.uses.assign(program.weights.size(), WeightUse::None);
        plan_.places.assign(program.weights.size(), 0);
    }

    Plan run() {
        size_t i = 0;
        for (const Program::Part &part : program_.whole_parts()) {
            quantized_ = kNoSlot;  // other devices may change slots in between
            part_ = part;
            first_op_ = plan_.ops.size();
            for (; i < part.end; ++i) next(i);
            plan_.part_ends.push_back(plan_.ops.size());
        }
        return std::move(plan_);
    }

    // The step at `i`, and the next one if they are fused.
    void next(size_t &i) {
        step_ = i;
        expect(!plan_.logits, "steps after the logits");
        if (fuse_gate(i))
            ++i;
        else
            add_step(i);
    }
    void add_step(size_t i) {
        std::visit([&](const auto &step) { add(step); }, program_.steps[i]);
    }

  private:
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }

    enum class Count { One, Many };

    void use_tiles(WeightId id, Count count = Count::One) {
        if (!has_tiles(weight(id).type))
            lack_kernel("weights of type " + std::string(gguf::traits(weight(id).type).name) + " (" +
                        weight(id).name + ")");
        if (count == Count::One && weight(id).count != 1)
            lack_kernel("several matrices in one tensor (" + weight(id).name + ")");
        use(id, WeightUse::Tiles);
    }
    void use_floats(WeightId id) {
        if (id == kNoWeight) return;
        if (weight(id).type != gguf::Type::F32)
            lack_kernel("a vector that is not F32 (" + weight(id).name + ")");
        use(id, WeightUse::Floats);
    }
    void use(WeightId id, WeightUse as) {
        WeightUse &known = plan_.uses[static_cast<size_t>(id)];
        if (known != WeightUse::None && known != as)
            lack_kernel("a tensor used both as a matrix and as a vector (" + weight(id).name + ")");
        known = as;
    }

    // Adds the quantization of `in`, if a matrix in this format needs it and the buffer does not hold it. A
    // buffer holds all forms that some matrix of the plan needs.
    void quantize(Slot in, TileFormat format) {
        plan_.forms = plan_.forms | forms_of(format);
        plan_.prepared = plan_.prepared | forms_of(format);
        expect(!forms_of(format).integers || width(in) % 32 == 0,
               "activations whose width is not a multiple of 32");
        if (!forms_of(format).any() || quantized_ == in) return;
        prepare({in, in, kNoWeight, 0});
    }
    void prepare(PrepareOp op) {
        plan_.widest = std::max(plan_.widest, width(op.slot));
        buffer_ = 1 - buffer_;
        op.buffer = buffer_;
        op.readers = readers_of(op);
        op.routes = routes(op);
        if (std::optional<PrepareOp> *by_maker = preparing(op.in))
            *by_maker = op;
        else
            plan_.ops.push_back(op);
        quantized_ = op.slot;
        prepared_ = std::move(op);
    }
    // PrepareOp::readers of a norm, which is the current step: of the matrices behind it, with at most copies in between. Its
    // input must not change before they have read it, nor while they do (an activation behind them may be part of their launch).
    std::vector<TileFormat> readers_of(const PrepareOp &op) const {
        std::vector<TileFormat> readers;
        if (op.norm == kNoWeight) return {};
        size_t i = step_ + 1;
        for (; i < part_.end; ++i) {
            const Step &step = program_.steps[i];
            if (!reads_slot(step, op.slot)) {
                const bool passed = std::holds_alternative<Copy>(step) && !writes_slot(step, op.in) &&
                                    !writes_slot(step, op.slot);
                if (passed) continue;
                break;
            }
            const auto *linear = std::get_if<Linear>(&program_.steps[i]);
            if (linear == nullptr) return {};
            for (const Linear::Part &part : linear->parts) {
                if (part.add == op.slot || part.out == op.in || !has_tiles(weight(part.weight).type))
                    return {};
                readers.push_back(tile_format(weight(part.weight).type));
                if (is_float(readers.back())) return {};
            }
        }
        const bool overwritten = i < part_.end && std::holds_alternative<Activation>(program_.steps[i]) &&
                                 writes_slot(program_.steps[i], op.in);
        return overwritten || read_after(i, op.slot) ? std::vector<TileFormat>{} : readers;
    }
    // PrepareOp::routes of a norm, which is the current step.
    bool routes(const PrepareOp &op) const {
        return op.norm != kNoWeight && is_router(step_ + 1) &&
               std::get<Linear>(program_.steps[step_ + 1]).in == op.slot && op.in != op.slot &&
               width(op.slot) <= kMostRouterPrepared && program_.resident_experts == 0;
    }
    // Whether steps[i] is the router of the experts in steps[i + 1], such that one launch can compute it and choose
    // (RouterMatrix).
    bool is_router(size_t i) const {
        if (i + 1 >= part_.end) return false;
        const auto *linear = std::get_if<Linear>(&program_.steps[i]);
        const auto *experts = std::get_if<Experts>(&program_.steps[i + 1]);
        if (linear == nullptr || experts == nullptr || linear->parts.size() != 1) return false;
        const Linear::Part &part = linear->parts[0];
        const Weight &w = weight(part.weight);
        return part.out == experts->logits && part.add == kNoSlot && w.type == gguf::Type::F32 &&
               w.rows == expert_count(program_, *experts) && width(linear->in) % 4 == 0 &&
               std::ranges::find(part_.out, part.out) == part_.out.end();
    }
    // The prepare field of the last operation, if it can quantize its output and that output is `slot`.
    std::optional<PrepareOp> *preparing(Slot slot) {
        if (plan_.ops.size() == first_op_) return nullptr;
        Op &last = plan_.ops.back();
        if (auto *linear = std::get_if<LinearOp>(&last))
            return linear->output() == slot && !linear->prepare &&
                           weight(linear->parts[0].weight).rows == width(slot)
                       ? &linear->prepare
                       : nullptr;
        if (auto *experts = std::get_if<ExpertsOp>(&last))
            return experts->step.out == slot && experts->step.down != kNoWeight && !experts->prepare &&
                           experts->out_width == width(slot)
                       ? &experts->prepare
                       : nullptr;
        auto *attention = std::get_if<AttentionOp>(&last);
        return attention && attention->step.out == slot && !attention->prepare ? &attention->prepare
                                                                               : nullptr;
    }
    void written(Slot slot) {
        if (quantized_ == slot) quantized_ = kNoSlot;
    }

    void add(const Embed &step) {
        if (step.table == kNoWeight) lack_kernel("the ids of tokens");
        use_tiles(step.table);
        if (step.positions != kNoWeight) use_tiles(step.positions);
        plan_.ops.push_back(step);
        written(step.out);
    }
    // Its tables are larger than the memory of GPUs: tens of gigabytes, of which a token reads a few rows.
    void add(const HashedEmbed &) { lack_kernel("tables of n-grams"); }
    void add(const Norm &step) {
        use_floats(step.weight);
        use_floats(step.bias);
        const bool plain = step.kind == Norm::Kind::Rms && step.bias == kNoWeight && step.add == kNoSlot &&
                           step.parts == 1 && step.scale == 1 && step.weight != kNoWeight &&
                           width(step.out) % 32 == 0;
        if (plain) {
            prepare({step.in, step.out, step.weight, step.eps});
        } else {
            plan_.ops.push_back(step);
            written(step.out);
        }
    }
    void add(const Linear &step) {
        std::vector<bool> done(step.parts.size(), false);
        for (size_t first = 0; first < step.parts.size(); ++first) {
            if (done[first]) continue;
            LinearOp op{step.in, format_of(step.parts[first].weight), {}};
            for (size_t i = first; i < step.parts.size(); ++i) {
                if (done[i] || format_of(step.parts[i].weight) != op.format ||
                    op.parts.size() == kLinearMatrices)
                    continue;
                op.parts.push_back(step.parts[i]);
                done[i] = true;
            }
            push(std::move(op));
        }
    }
    TileFormat format_of(WeightId id) {
        use_tiles(id);
        return tile_format(weight(id).type);
    }
    void push(LinearOp op) {
        for (const Linear::Part &part : op.parts) {
            expect(part.out != op.in, "a matrix that overwrites its input");
            use_floats(part.bias);
        }
        quantize(op.in, op.format);
        op.buffer = buffer_;
        if (quantized_ == op.in && !prepared_.readers.empty()) op.prepare_input = prepared_;
        for (const Linear::Part &part : op.parts) written(part.out);
        plan_.ops.push_back(std::move(op));
    }
    // Whether the slices do not overlap.
    static bool apart(const StridedSlices &to, int64_t count, int64_t width) {
        return count == 1 || std::abs(to.stride) >= width;
    }
    void add(const HeadLinear &step) {
        const Weight &w = weight(step.weight);
        expect(step.in != step.out, "matrices of heads that overwrite their input");
        expect(w.count <= kMaxHeads, "this many matrices of heads");
        expect(apart(step.to, w.count, w.rows), "matrices of heads whose outputs overlap");
        use_tiles(step.weight, Count::Many);
        plan_.ops.push_back(step);
        written(step.out);
    }
    // The start of the first slice and the end of the last.
    static std::pair<int64_t, int64_t> ends(const Copy &c) {
        const int64_t last = c.to.first + (c.count - 1) * c.to.stride;
        return {std::min(c.to.first, last), std::max(c.to.first, last) + c.width};
    }
    static bool independent(const Copy &a, const Copy &b) {
        if (a.out == b.in || b.out == a.in) return false;
        return a.out != b.out || ends(a).second <= ends(b).first || ends(b).second <= ends(a).first;
    }
    void add(const Copy &step) {
        expect(step.in != step.out, "a copy within one slot");
        expect(apart(step.to, step.count, step.width), "a copy to overlapping slices");
        auto *before = plan_.ops.size() > first_op_ ? std::get_if<CopyOp>(&plan_.ops.back()) : nullptr;
        const auto fits = [&](const Copy &other) { return independent(other, step); };
        if (before && before->copies.size() < kCopies && std::ranges::all_of(before->copies, fits))
            before->copies.push_back(step);
        else
            plan_.ops.push_back(CopyOp{{step}});
        written(step.out);
    }
    void add(const Rotate &step) {
        expect(step.block <= kMostRotated, "rotations in blocks of this size");
        use_floats(step.signs);
        plan_.ops.push_back(step);
        written(step.out);
    }
    void add(const Mix &step) {
        static_assert(kMixSlices == Mix::kMostSlices);
        for (const Slot slot : step.out) written(slot);
        plan_.ops.push_back(step);
    }
    void add(const StreamWeights &step) {
        static_assert(kMostStreams == StreamWeights::kMostStreams);
        use_floats(step.scales);
        use_floats(step.bias);
        plan_.ops.push_back(step);
        written(step.read);
        written(step.mix);
    }
    void add(const Rope &step) {
        plan_.ops.push_back(step);
        written(step.slot);
    }
    void add(const JoinAttention &step) {
        static_assert(kJoinParts == JoinAttention::kMost);
        plan_.ops.push_back(step);
        written(step.out);
    }
    void add(const Lerp &step) {
        static_assert(kLerpOutputs == Lerp::kMostOutputs);
        expect(step.out.size() <= kLerpOutputs, "an interpolation with this many outputs");
        use_floats(step.weight);
        for (const Slot slot : step.out) written(slot);
        plan_.ops.push_back(step);
    }
    void add(const Attention &step) {
        const CacheLayer &layer = program_.cache_layers[static_cast<size_t>(step.cache)];
        const bool latent = layer.head_dim_v == 0;
        const bool wide = is_wide(latent, step.head_dim_k, step.head_dim_v) || step.chosen != kNoSlot;
        expect(step.stride == 1 || (latent && step.window == 0 && step.slopes == kNoWeight),
               "attention to keys that stand for blocks of tokens, with values of their own");
        expect(step.chosen == kNoSlot || step.stride == 1 ||
                   (step.chosen_pooled && step.chosen_block == step.stride),
               "chosen blocks of another size than the keys stand for");
        expect(step.sums == kNoSlot || wide, "sums of attention with heads of this size");
        expect(latent ? step.v == kNoSlot : (step.k == kNoSlot) == (step.v == kNoSlot),
               "keys and values that do not match the layer's cache");
        expect(step.attends() == (step.out != kNoSlot) && (step.attends() || step.k != kNoSlot),
               "attention with only one of queries and outputs, or with neither these nor keys");
        expect(step.head_dim_k % 8 == 0 && step.head_dim_v % 8 == 0 && step.head_dim_k <= kMaxWideK &&
                   step.head_dim_v <= (latent ? std::min(kMaxWideV, step.head_dim_k) : kMaxWideV),
               "heads of this size");
        use_floats(step.q_norm);
        use_floats(step.k_norm);
        use_floats(step.sinks);
        use_floats(step.slopes);
        expect(step.chosen == kNoSlot || step.slopes == kNoWeight,
               "sparse attention with biases by distance");
        plan_.ops.push_back(AttentionOp{step, {}});
        written(step.out);
    }
    void add(const Indexer &step) {
        expect(step.head_dim % 8 == 0 && step.head_dim <= kMostIndexKey, "index keys of this size");
        expect(step.heads <= kMaxHeads && step.lists() <= kIndexTurn, "this many index heads");
        plan_.ops.push_back(step);
        written(step.q);  // rotated in place
        written(step.chosen);
    }
    static ActivationKind activation_of(Activation::Kind act) {
        switch (act) {
            case Activation::Kind::Silu:
                return ActivationKind::Silu;
            case Activation::Kind::GeluTanh:
                return ActivationKind::GeluTanh;
            case Activation::Kind::ReluSquared:
                return ActivationKind::ReluSquared;
            case Activation::Kind::SiluClamped:
                return ActivationKind::SiluClamped;
            case Activation::Kind::GeluErf:
                return ActivationKind::GeluErf;
            case Activation::Kind::Sigmoid:
                return ActivationKind::Sigmoid;
            case Activation::Kind::Relu:
                return ActivationKind::Relu;
            case Activation::Kind::Clamp:
                return ActivationKind::Clamp;
            case Activation::Kind::XIelu:
                return ActivationKind::XIelu;
            case Activation::Kind::Identity:
                return ActivationKind::Identity;
            case Activation::Kind::SiluThenLimit:
                return ActivationKind::SiluThenLimit;
            case Activation::Kind::LimitThenSilu:
                return ActivationKind::LimitThenSilu;
            case Activation::Kind::Tanh:
                return ActivationKind::Tanh;
            case Activation::Kind::SignedRoot:
                return ActivationKind::SignedRoot;
        }
        return ActivationKind::Silu;
    }
    void add(const Activation &step) {
        plan_.ops.push_back(ActivateOp{step, activation_of(step.act)});
        written(step.out);
    }
    void add(const Experts &step) {
        const bool has_in = step.gate != kNoWeight, has_out = step.down != kNoWeight;
        const int64_t experts = expert_count(program_, step), hidden = expert_width(program_, step);
        const Routing &r = step.routing;
        expect(experts <= kMaxExperts && r.used <= kMaxUsedExperts && r.groups <= kMaxExpertGroups,
               "this many experts");
        ExpertsOp op{step,
                     {},
                     TileFormat::F32,
                     0,
                     static_cast<int32_t>(experts),
                     has_in ? weight(step.gate).cols : 0,
                     hidden,
                     has_out ? weight(step.down).rows : 0,
                     step.up != kNoWeight || has_merged_gate(program_, step),
                     step.gate_scales != kNoWeight || step.up_scales != kNoWeight,
                     false,
                     activation_of(step.act)};
        take_router(op);
        if (has_in) add_in(op, {step.gate, step.gate_bias, weight(step.gate).rows, 0}, false);
        if (step.up != kNoWeight) add_in(op, {step.up, step.up_bias, weight(step.up).rows, op.width}, true);
        use_floats(step.gate_scales);
        use_floats(step.up_scales);
        op.fused = op.in.size() == 1 && op.in[0].parts.size() == 2 && step.act == Activation::Kind::Silu;
        expect((has_in && has_out) || (r.used * hidden) % Experts::kHiddenUnit == 0,
               "experts in two steps whose rows have padding");
        if (has_out) {
            use_tiles(step.down, Count::Many);
            op.down = tile_format(weight(step.down).type);
            expect(!forms_of(op.down).integers || op.width % 32 == 0,
                   "experts whose width is not a multiple of 32");
        }
        use_floats(step.down_bias);
        use_floats(r.selection_bias);
        use_floats(r.expert_scales);
        for (const ExpertsOp::In &in : op.in) quantize(step.in, in.format);
        op.buffer = buffer_;
        if (program_.resident_experts > 0) place(op, std::max(program_.resident_experts, r.used));
        plan_.ops.push_back(std::move(op));
        written(step.out);
    }
    // Takes the router, which is the last operation.
    void take_router(ExpertsOp &op) {
        if (plan_.ops.size() == first_op_ || step_ == 0 || !is_router(step_ - 1)) return;
        op.router = std::get<LinearOp>(std::move(plan_.ops.back()));
        plan_.ops.pop_back();
        if (!prepared_.routes || quantized_ != op.router->in) return;
        op.prepare_input = prepared_;
        prepared_.routes = false;  // another router that reads the slot finds it prepared
    }
    // Device memory holds `resident` of the experts.
    void place(ExpertsOp &op, int32_t resident) {
        if (resident >= op.experts) return;
        expect(!op.in.empty() && op.step.down != kNoWeight, "experts that are not resident, in two steps");
        op.places = resident;
        op.placed = placed_++;
        for (const WeightId id : {op.step.gate, op.step.up, op.step.down})
            if (id != kNoWeight) plan_.places[static_cast<size_t>(id)] = resident;
    }
    void add_in(ExpertsOp &op, const ExpertsOp::Part &part, bool of_up) {
        use_tiles(part.weight, Count::Many);
        use_floats(part.bias);
        const TileFormat format = tile_format(weight(part.weight).type);
        if (op.in.empty() || op.in[0].format != format || op.scaled) op.in.push_back({format, {}, of_up});
        op.in.back().parts.push_back(part);
    }
    // A step over states: its weights are vectors, and its output is none of its inputs.
    template <class Step>
    void add_recurrent(const Step &step, const char *what, std::initializer_list<Slot> inputs,
                       std::initializer_list<WeightId> vectors) {
        for (const Slot in : inputs)
            if (in == step.out) lack_kernel(what + std::string(" that overwrites its input"));
        for (const WeightId id : vectors) use_floats(id);
        plan_.ops.push_back(step);
        written(step.out);
    }
    void expect_most(int64_t count, int64_t most, const std::string &before, const std::string &behind) {
        expect(count <= most,
               before + std::to_string(count) + behind + " (at most " + std::to_string(most) + ")");
    }
    void add(const ShortConv &step) {
        add_recurrent(step, "a convolution", {step.in}, {step.weight, step.bias});
    }
    void add(const SoftPool &step) {
        add_recurrent(step, "pooled tokens", {step.value, step.score}, {step.bias});
    }
    void add(const ScanGate &step) {
        use_floats(step.bias);
        use_floats(step.rate);
        plan_.ops.push_back(step);
        written(step.step);
        written(step.decay);
    }
    void add(const LinearScan &step) {
        expect_most(step.dk, kMostScanKeys, "recurrent heads with ", " key channels");
        add_recurrent(step, "a scan", {step.v, step.q, step.k, step.erase_read, step.erase_write},
                      {step.rate, step.skip});
    }
    void add(const SelectiveScan &step) {
        expect_most(width(step.b), kMostScanElements, "recurrent layers with ", " states per channel");
        add_recurrent(step, "a scan", {step.x, step.dt, step.b, step.c}, {step.rate, step.skip});
    }
    void add(const Logits &step) {
        use_tiles(step.weight);
        use_floats(step.bias);
        const ActivationForms forms = forms_of(tile_format(weight(step.weight).type));
        if (forms.any()) plan_.widest = std::max(plan_.widest, width(step.in));
        plan_.forms = plan_.forms | forms;
        plan_.logits = step;
    }

    // Fuses a Linear of gate and up with the Activation after it, if nothing else reads their outputs.
    bool fuse_gate(size_t index) {
        const auto gated = gated_linear(program_, index);
        if (index + 1 >= part_.end || !gated || gated->act->act != Activation::Kind::Silu) return false;
        const Activation *gate = gated->act;
        Linear::Part first = gated->gate, second = gated->up;
        const auto plain = [](const Linear::Part &part) { return part.add == kNoSlot && part.scale == 1; };
        if (!plain(first) || !plain(second)) return false;
        if (weight(first.weight).rows != weight(second.weight).rows || gate->out == gated->in) return false;
        if (format_of(first.weight) != format_of(second.weight)) return false;
        for (const Slot slot : {gate->gate, gate->up})
            if (slot != gate->out && read_after(index + 2, slot)) return false;
        first.out = gate->out;
        second.out = kNoSlot;
        use_floats(second.bias);
        push({gated->in, format_of(first.weight), {first, second}, LinearGate::Silu});
        return true;
    }
    // Whether a step from steps[from] on, or another device behind the part, reads what is in the slot before steps[from].
    bool read_after(size_t from, Slot slot) const {
        for (size_t i = from;; ++i) {
            if (i == part_.end && std::ranges::find(part_.out, slot) != part_.out.end()) return true;
            if (i >= program_.steps.size()) return false;
            if (reads_slot(program_.steps[i], slot)) return true;
            if (writes_slot(program_.steps[i], slot)) return false;
        }
    }

    const Program &program_;
    Plan plan_;
    Program::Part part_;   // the current one
    size_t first_op_ = 0;  // index of its first operation
    size_t step_ = 0;      // the current one
    Slot quantized_ = kNoSlot;
    PrepareOp prepared_{};  // what prepares `quantized_`
    int buffer_ = 0;        // the buffer that holds `quantized_`
    int32_t placed_ = 0;    // operations with ExpertsOp::places so far
};

}  // namespace

Plan plan(const Program &program) {
    return Planner(program).run();
}

std::vector<std::string> missing_kernels(const Program &program) {
    std::vector<std::string> missing(program.steps.size());
    for (size_t i = 0; i < missing.size(); ++i) try {
            Planner(program).add_step(i);
        } catch (const BackendError &error) {
            missing[i] = error.what();
        }
    return missing;
}

}  // namespace runnel::kernels::cuda
