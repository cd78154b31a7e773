#include "kernels/cuda/scan/scan_runner.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {
namespace {

// Floats of a slot. Layers begin at multiples of 256 bytes, as rows of slots do.
int64_t slot_floats(const Program &program) {
    int64_t floats = 0;
    for (const StateLayer &layer : program.state_layers) floats += stride_of(layer.floats);
    return floats;
}

// The arrays of a batch: ScanCounts, then room for one sequence, one write and one sequence index per token.
struct BatchLayout {
    explicit BatchLayout(int32_t max_tokens)
        : writes(sequences + static_cast<size_t>(max_tokens) * sizeof(ScanSequence)),
          sequence_of(writes + static_cast<size_t>(max_tokens) * sizeof(ScanWrite)),
          bytes(sequence_of + static_cast<size_t>(max_tokens) * sizeof(int32_t)) {}
    size_t sequences = sizeof(ScanCounts), writes, sequence_of, bytes;
};

// A slot's rows; null for kNoSlot.
struct Rows {
    float *data = nullptr;
    int64_t stride = 0;
    int32_t width = 0;
};
Rows rows_of(const Program &program, std::span<float *const> slots, Slot slot) {
    if (slot == kNoSlot) return {};
    const int64_t width = program.slots[static_cast<size_t>(slot)].width;
    return {slots[static_cast<size_t>(slot)], stride_of(width), static_cast<int32_t>(width)};
}

int64_t blocks_for(int64_t threads) {
    return divide_up(threads, kScanThreads);
}

Kernel<LinearScanParams> kernel_of_scan(const LinearScan &step) {
    return linear_scan_kernel(step.dk, step.erase_read != kNoSlot || step.reads_before);
}

void prepare_kernels(const Program &program) {
    for_each_step<ShortConv>(program, [](const ShortConv &) { prepare(short_conv_kernel().handle, 0); });
    for_each_step<SoftPool>(program, [](const SoftPool &) { prepare(soft_pool_kernel().handle, 0); });
    for_each_step<ScanGate>(program, [](const ScanGate &) { prepare(scan_gate_kernel().handle, 0); });
    for_each_step<LinearScan>(program, [](const LinearScan &s) { prepare(kernel_of_scan(s).handle, 0); });
    for_each_step<SelectiveScan>(program, [&](const SelectiveScan &s) {
        const int64_t n = program.slots[static_cast<size_t>(s.b)].width;
        prepare(selective_scan_kernel(static_cast<int32_t>(n)).handle, 0);
    });
}

}  // namespace

size_t ScanRunner::state_memory(const Program &program, const CacheConfig &cache) {
    return static_cast<size_t>(slot_floats(program) * cache.states) * sizeof(float);
}

size_t ScanRunner::bytes(const Program &program, int32_t max_tokens) {
    return slot_floats(program) > 0 ? BatchLayout(max_tokens).bytes : 0;
}

ScanRunner::ScanRunner(const Program &program, const CacheConfig &cache, int32_t max_tokens)
    : program_(&program), max_tokens_(max_tokens) {
    prepare_kernels(program);
    for (const StateLayer &layer : program.state_layers) {
        offsets_.push_back(slot_);
        slot_ += stride_of(layer.floats);
    }
    if (const size_t all = state_memory(program, cache); all > 0) {
        states_ = DeviceMemory(all, "states of recurrent layers");
        name_region(states_.data(), all, "states", Region::Data);
    }
    if (const size_t all = bytes(program, max_tokens); all > 0) {
        host_ = PinnedMemory(all);
        batch_ = DeviceMemory(all, "the batch");
        std::memset(host_.data(), 0, all);
    }
}

void ScanRunner::upload(Stream &stream, const Batch &batch) {
    if (host_.size() == 0) return;
    const BatchLayout layout(max_tokens_);
    std::byte *const to = host_.data();
    auto *sequence = reinterpret_cast<ScanSequence *>(to + layout.sequences);
    auto *write = reinterpret_cast<ScanWrite *>(to + layout.writes);
    auto *owner = reinterpret_cast<int32_t *>(to + layout.sequence_of);
    ScanCounts counts{};
    for (const SequenceSpan &s : batch.sequences) {
        const auto own = static_cast<int32_t>(s.state_writes.size());
        *sequence++ = {s.first, s.count, s.state, counts.writes, own, s.past};
        for (const StateWrite &w : s.state_writes) *write++ = {counts.sequences, w.tokens, w.slot};
        std::fill_n(owner + s.first, s.count, counts.sequences);
        counts.writes += own;
        ++counts.sequences;
    }
    std::memcpy(to, &counts, sizeof counts);
    stream.copy_to_device(batch_.data(), to, layout.bytes);
}

ScanBatch ScanRunner::batch() const {
    const BatchLayout layout(max_tokens_);
    const std::byte *at = batch_.data();
    return {reinterpret_cast<const ScanCounts *>(at),
            reinterpret_cast<const ScanSequence *>(at + layout.sequences),
            reinterpret_cast<const ScanWrite *>(at + layout.writes),
            reinterpret_cast<const int32_t *>(at + layout.sequence_of)};
}

ScanStates ScanRunner::states(int32_t layer) const {
    return {states_.as<float>() + offsets_[static_cast<size_t>(layer)], slot_};
}

void ScanRunner::enqueue(Launcher &launcher, const ShortConv &step, const Operands &operands) const {
    const Rows in = rows_of(*program_, operands.slots, step.in),
               out = rows_of(*program_, operands.slots, step.out);
    const Weight &weight = program_->weights[static_cast<size_t>(step.weight)];
    launcher.run(short_conv_kernel(),
                 blocks_for(in.width * std::max(divide_up(operands.tokens, kConvTokens),
                                                std::min<int64_t>(operands.tokens, kConvTokens))),
                 0,
                 {in.data, operands.weights.floats(step.weight), operands.weights.floats(step.bias), out.data,
                  in.stride, out.stride, in.width, static_cast<int32_t>(weight.rows), operands.tokens,
                  step.silu, states(step.state), batch()});
}

void ScanRunner::enqueue(Launcher &launcher, const SoftPool &step, const Operands &operands) const {
    const auto rows = [&](Slot slot) { return rows_of(*program_, operands.slots, slot); };
    const Rows value = rows(step.value), score = rows(step.score), out = rows(step.out);
    // A state has as many floats as some tokens.
    const int64_t threads =
        std::max<int64_t>(int64_t{out.width} * operands.tokens, 2 * int64_t{step.rows() - 1} * score.width);
    launcher.run(soft_pool_kernel(), blocks_for(threads), 0,
                 {value.data, score.data, operands.weights.floats(step.bias), out.data, value.stride,
                  score.stride, out.stride, out.width, score.width, step.block, step.rows(), operands.tokens,
                  states(step.state), batch()});
}

void ScanRunner::enqueue(Launcher &launcher, const ScanGate &step, const Operands &operands) const {
    const Rows in = rows_of(*program_, operands.slots, step.in),
               dt = rows_of(*program_, operands.slots, step.step),
               decay = rows_of(*program_, operands.slots, step.decay);
    const GateForm form = step.form == ScanGate::Form::Softplus  ? GateForm::Softplus
                          : step.form == ScanGate::Form::Sigmoid ? GateForm::Sigmoid
                                                                 : GateForm::Exponential;
    const int64_t rates =
        step.rate == kNoWeight ? in.width : program_->weights[static_cast<size_t>(step.rate)].cols;
    launcher.run(
        scan_gate_kernel(), blocks_for(int64_t{in.width} * operands.tokens), 0,
        {in.data, operands.weights.floats(step.bias), operands.weights.floats(step.rate),
         form == GateForm::Softplus ? dt.data : nullptr, decay.data, in.stride, dt.stride, decay.stride,
         in.width, static_cast<int32_t>(in.width / rates), operands.tokens, form, step.bound});
}

// The grid is large enough for as many sequences as there are tokens.
void ScanRunner::enqueue(Launcher &launcher, const LinearScan &step, const Operands &operands) const {
    const auto rows = [&](Slot slot) { return rows_of(*program_, operands.slots, slot); };
    const Rows q = rows(step.q), k = rows(step.k), v = rows(step.v), out = rows(step.out),
               decay = rows(step.decay), strength = rows(step.strength), erase_read = rows(step.erase_read),
               erase_write = rows(step.erase_write);
    const int64_t warps = step.heads * divide_up(step.dv, kScanColumns) * operands.tokens;
    launcher.run(kernel_of_scan(step), blocks_for(32 * warps), 0,
                 {q.data,
                  k.data,
                  v.data,
                  decay.data,
                  strength.data,
                  erase_read.data,
                  erase_write.data,
                  operands.weights.floats(step.rate),
                  operands.weights.floats(step.skip),
                  out.data,
                  q.stride,
                  k.stride,
                  v.stride,
                  decay.stride,
                  strength.stride,
                  erase_read.stride,
                  erase_write.stride,
                  out.stride,
                  step.heads,
                  step.key_heads,
                  step.dk,
                  step.dv,
                  step.neighbors,
                  decay.data != nullptr && decay.width != step.heads,
                  step.delta,
                  step.reads_before,
                  states(step.state),
                  batch()});
}

void ScanRunner::enqueue(Launcher &launcher, const SelectiveScan &step, const Operands &operands) const {
    const auto rows = [&](Slot slot) { return rows_of(*program_, operands.slots, slot); };
    const Rows x = rows(step.x), dt = rows(step.dt), b = rows(step.b), c = rows(step.c), out = rows(step.out);
    const int64_t warps = divide_up(x.width, kScanChannels) * operands.tokens;
    launcher.run(selective_scan_kernel(b.width), blocks_for(32 * warps), 0,
                 {x.data, dt.data, b.data, c.data, operands.weights.floats(step.rate),
                  operands.weights.floats(step.skip), out.data, x.stride, dt.stride, b.stride, c.stride,
                  out.stride, x.width, b.width, states(step.state), batch()});
}

template <typename F>
void ScanRunner::visit(StateId slot, F f) const {
    for (size_t layer = 0; layer < offsets_.size(); ++layer)
        if (const int64_t floats = program_->state_layers[layer].floats; floats > 0)
            f(states_.as<float>() + slot * slot_ + offsets_[layer],
              static_cast<size_t>(floats) * sizeof(float));
}

void ScanRunner::read(Stream &stream, StateId slot, std::span<std::byte> bytes) const {
    visit(slot, [&](const float *state, size_t size) {
        stream.copy_to_host(bytes.data(), state, size);
        bytes = bytes.subspan(size);
    });
    stream.wait();
}

void ScanRunner::write(Stream &stream, StateId slot, std::span<const std::byte> bytes) const {
    visit(slot, [&](float *state, size_t size) {
        stream.copy_to_device(state, bytes.data(), size);
        bytes = bytes.subspan(size);
    });
    stream.wait();
}

}  // namespace runnel::kernels::cuda
