#include "kernels/cuda/select/logits_runner.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>

#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/steps/elementwise.h"
#include "kernels/cuda/steps/embed.h"

namespace runnel::kernels::cuda {
namespace {

constexpr const char *kName = "logits";
constexpr auto kRows = static_cast<size_t>(kLinearTokens);
constexpr int32_t kArgmaxShare = 8192;  // logits per block, at least

size_t kept_bytes(const Program &program, const Logits &step) {
    const int64_t width = program.slots[static_cast<size_t>(step.in)].width;
    return static_cast<size_t>(stride_of(width)) * kRows * sizeof(float);
}

size_t chunks_of(int64_t vocab) {
    return static_cast<size_t>((vocab + kSelectChunk - 1) / kSelectChunk);
}

}  // namespace

size_t LogitsRunner::bytes(const Program &program, const Logits &step) {
    const size_t chunks = chunks_of(program.vocab) * kRows;
    return kept_bytes(program, step) + static_cast<size_t>(program.vocab) * kRows * sizeof(float) +
           chunks * (kMaxCandidates * sizeof(uint64_t) + sizeof(ExpSum)) +
           kRows * (sizeof(uint64_t) + sizeof(uint32_t)) +
           kRows * (mask_bytes_of(program.vocab) + sizeof(int32_t));
}

LogitsRunner::LogitsRunner(const Program &program, const Logits &step, int32_t max_tokens,
                           const DeviceProperties &properties)
    : step_(step),
      weight_(&program.weights[static_cast<size_t>(step.weight)]),
      vocab_(static_cast<int32_t>(program.vocab)),
      argmax_blocks_(std::clamp(vocab_ / kArgmaxShare, 1, std::max(1, properties.multiprocessors))) {
    const size_t chunks = chunks_of(program.vocab) * kRows;
    const size_t logits = static_cast<size_t>(program.vocab) * kRows * sizeof(float);
    kept_ = DeviceMemory(kept_bytes(program, step), kName);
    logits_ = DeviceMemory(logits, kName);
    keys_ = DeviceMemory(chunks * kMaxCandidates * sizeof(uint64_t), kName);
    partial_ = DeviceMemory(chunks * sizeof(ExpSum), kName);
    best_ = DeviceMemory(kRows * sizeof(uint64_t), kName);
    counters_ = DeviceMemory(kRows * sizeof(uint32_t), kName);
    masks_ = DeviceMemory(masks_bytes(), kName);
    host_logits_ = PinnedMemory(logits);
    host_candidates_ = PinnedMemory(static_cast<size_t>(max_tokens) * kMaxCandidates * sizeof(TopLogit));
    host_sums_ = PinnedMemory(static_cast<size_t>(max_tokens) * sizeof(ExpSum));
    Stream stream;
    for (const DeviceMemory *zeroed : {&best_, &counters_}) stream.fill(zeroed->data(), 0, zeroed->size());
    stream.wait();
    prepare(gather_kernel().handle, 0);
    prepare(quantize_kernel().handle, kQuantizeShared);
    prepare(softcap_kernel().handle, 0);
    prepare(argmax_kernel().handle, kArgmaxShared);
    prepare(candidate_chunk_kernel().handle, candidate_shared());
    prepare(candidate_row_kernel().handle, candidate_shared());
    prepare_linear(properties, tile_format(weight_->type), kLinearTokens);
}

void LogitsRunner::enqueue(Launcher &launcher, const DeviceWeights &weights, const Operands &operands,
                           int32_t first, int32_t count) {
    const auto cols = static_cast<int32_t>(weight_->cols);
    const TileFormat format = tile_format(weight_->type);
    float *rows = kept_.as<float>();
    launcher.run_exactly(gather_kernel(), count, 0,
                         {operands.in, operands.rows + first, rows, operands.stride, operands.stride, cols});
    if (forms_of(format).any())
        launcher.run_exactly(quantize_kernel(), count, kQuantizeShared,
                             {rows, nullptr, nullptr, 0, cols, operands.stride, operands.quantized});
    LinearParams p = linear_params(cols);
    p.x = operands.quantized;
    p.x_f32 = rows;
    p.x_stride = operands.stride;
    p.matrices = 1;
    p.matrix[0].tiles = weights.tiles(step_.weight);
    p.matrix[0].bias = weights.floats(step_.bias);
    p.matrix[0].out = logits_.as<float>();
    p.matrix[0].out_stride = vocab_;
    p.matrix[0].rows = static_cast<int32_t>(weight_->rows);
    p.matrix[0].scale = step_.scale;
    p.tokens = count;
    p.ahead = operands.ahead;
    launch_linear(launcher, p, format);
    if (step_.softcap != 0)
        launcher.run(softcap_kernel(), (int64_t{count} * vocab_ + 255) / 256, 0,
                     {logits_.as<float>(), int64_t{count} * vocab_, step_.softcap});
}

void LogitsRunner::reserve_masks(size_t rows) {
    const size_t bytes = (rows + kRows - 1) / kRows * masks_bytes();
    if (host_masks_.size() < bytes) host_masks_ = PinnedMemory(bytes);
}

void LogitsRunner::stage_masks(std::span<const TokenMask> masks) {
    assert(host_masks_.size() >= (masks.size() + kRows - 1) / kRows * masks_bytes());
    for (size_t first = 0; first < masks.size(); first += kRows) {
        std::byte *to = host_masks_.as<std::byte>() + first / kRows * masks_bytes();
        const std::span<int32_t> numbers(reinterpret_cast<int32_t *>(to), kRows);
        to += numbers.size_bytes();
        int32_t used = 0;
        for (size_t i = 0; i < kRows; ++i) {
            const TokenMask mask = first + i < masks.size() ? masks[first + i] : TokenMask{};
            numbers[i] = mask.empty() ? 0 : ++used;
            if (mask.empty()) continue;
            assert(mask.size_bytes() == mask_bytes());
            std::memcpy(to, mask.data(), mask_bytes());
            to += mask_bytes();
        }
    }
}

void LogitsRunner::upload_masks(Stream &stream, int32_t first) {
    assert(first % kLinearTokens == 0);
    const std::byte *from =
        host_masks_.as<const std::byte>() + static_cast<size_t>(first) / kRows * masks_bytes();
    const std::span<const int32_t> numbers(reinterpret_cast<const int32_t *>(from), kRows);
    const auto used = static_cast<size_t>(*std::ranges::max_element(numbers));
    stream.copy_to_device(masks_.data(), from, numbers.size_bytes() + used * mask_bytes());
}

void LogitsRunner::enqueue_candidates(Launcher &launcher, int32_t first, int32_t count, int32_t largest,
                                      bool masked) {
    const int32_t *numbers = masks_.as<const int32_t>();
    const RowMasks masks{masked ? reinterpret_cast<const uint32_t *>(numbers + kRows) : nullptr, numbers,
                         static_cast<int64_t>(mask_bytes() / sizeof(uint32_t))};
    TopLogit *const to = host_candidates_.as<TopLogit>() + int64_t{first} * largest;
    if (largest == 1) {
        launcher.run_exactly(argmax_kernel(), int64_t{count} * argmax_blocks_, kArgmaxShared,
                             {logits_.as<const float>(), vocab_, vocab_, argmax_blocks_, best_.as<uint64_t>(),
                              counters_.as<uint32_t>(), to, masks});
        return;
    }
    const CandidateParams params{logits_.as<const float>(),
                                 vocab_,
                                 vocab_,
                                 chunks(),
                                 largest,
                                 keys_.as<uint64_t>(),
                                 partial_.as<ExpSum>(),
                                 to,
                                 host_sums_.as<ExpSum>() + first,
                                 masks};
    launcher.run_exactly(candidate_chunk_kernel(), int64_t{count} * chunks(), candidate_shared(), params);
    launcher.run_exactly(candidate_row_kernel(), count, candidate_shared(), params);
}

void LogitsRunner::fetch(Stream &stream, std::span<float> logits, int32_t count) {
    const size_t bytes = static_cast<size_t>(count) * static_cast<size_t>(vocab_) * sizeof(float);
    stream.copy_to_host(host_logits_.data(), logits_.data(), bytes);
    stream.wait();
    std::memcpy(logits.data(), host_logits_.data(), bytes);
}

}  // namespace runnel::kernels::cuda
