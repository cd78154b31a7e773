// The largest logit, and the k largest. See select.h for the order.
//
// argmax: each block reduces its share of the row to one key, an atomic maximum joins them, and the last
// block of the row writes the token. candidates: a block finds the k-th largest key of its chunk by a radix
// search over 8-bit digits, from the highest, with a histogram in shared memory, and writes the keys at or
// above it; a second pass with one block per row does the same with the chunks' keys, and sorts. Bytes: 4
// vocab per row read once, and vocab / 8 of its mask; candidates: 8 k per chunk written and read.
#include "kernels/cuda/select/select.h"

#include <cmath>

#include "kernels/cuda/runtime/arrival.h"
#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = 8;

// The mask of a row; null if all tokens are allowed.
DEVICE const uint32_t *mask_of(const RowMasks &masks, int64_t row) {
    const int32_t number = masks.bits != nullptr ? masks.number[row] : 0;
    return number != 0 ? masks.bits + (number - 1) * masks.stride : nullptr;
}
DEVICE bool is_allowed(const uint32_t *mask, int32_t token) {
    const auto t = static_cast<uint32_t>(token);
    return mask == nullptr || (mask[t / 32] >> t % 32 & 1u) != 0;
}

// The 64-bit key of a token: larger for tokens that come first, never 0.
DEVICE uint64_t key_of(float logit, int32_t token, bool allowed) {
    const uint32_t bits = float_bits(logit);
    uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (logit == 0.0f) order = 0x80000000u;  // -0 is 0
    if (!allowed) order = 0;
    if (!(fabsf(logit) <= 3.4028235e38f)) order = 0xffffffffu;
    return static_cast<uint64_t>(order) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}
DEVICE int32_t token_of(uint64_t key) {
    return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}
// The token and the logit of a key.
DEVICE TopLogit entry_of(uint64_t key, const float *logits) {
    const int32_t token = token_of(key);
    const auto order = static_cast<uint32_t>(key >> 32);
    if (order == 0xffffffffu) return {token, bits_float(0x7fc00000u)};
    return {token, order == 0 ? bits_float(0xff800000u) : logits[token]};
}

DEVICE uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

// --- greedy ----------------------------------------------------------------------------------------------

struct alignas(16) ArgmaxShared {
    uint64_t best[kWarps];
    uint32_t arrived;
};
static_assert(sizeof(ArgmaxShared) == kArgmaxShared);

struct Argmax {
    using Params = ArgmaxParams;
    static constexpr const char *kName = "argmax";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 4;

    static DEVICE uint64_t best_of_block(const Params &p, int64_t row, int part, ArgmaxShared &shared) {
        uint64_t best = 0;
        const uint32_t *mask = mask_of(p.masks, row);
        for (int i = part * kThreads + thread_index(); i < p.vocab; i += p.blocks_per_row * kThreads)
            best = larger(best, key_of(p.logits[row * p.stride + i], i, is_allowed(mask, i)));
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) best = larger(best, shfl_xor(best, lanes));
        if (lane_index() == 0) shared.best[warp_index()] = best;
        block_sync();
        for (int w = 0; w < kWarps; ++w) best = larger(best, shared.best[w]);
        return best;
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<ArgmaxShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t row = block_index() / p.blocks_per_row;
        const uint64_t best = best_of_block(p, row, block_index() % p.blocks_per_row, shared);
        if (thread_index() == 0) {
            atomic_max_u64(p.best + row, best);
            if (is_last_to_arrive(p.counters + row, p.blocks_per_row)) {
                p.first[row] = entry_of(atomic_max_u64(p.best + row, 0), p.logits + row * p.stride);
                p.best[row] = 0;
            }
        }
    }
};

// --- candidates ------------------------------------------------------------------------------------------

struct SelectShared {
    uint64_t chosen[kMaxCandidates];
    uint32_t histogram[256];
    float partial[kWarps];
    uint64_t sums[kWarps][ExpSum::kWindows];
    uint32_t count;
    uint32_t digit, above;
};

// One step of the radix search, for the `wanted` largest (at least 1, at most all) of the keys whose bits
// above `shift + 8` equal prefix's: sets shared.digit to the next digit of the smallest of these `wanted`
// keys, and shared.above to the number of keys with a larger digit.
template <class Keys>
DEVICE void find_digit(SelectShared &shared, Keys keys, int count, uint64_t prefix, int shift,
                       uint32_t wanted) {
    shared.histogram[thread_index()] = 0;
    block_sync();
    for (int i = thread_index(); i < count; i += kThreads) {
        const uint64_t key = keys(i);
        if (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8))
            atomic_add_u32(&shared.histogram[key >> shift & 0xffu], 1);
    }
    block_sync();
    if (thread_index() == 0) {
        uint32_t above = 0, digit = 255;
        while (above + shared.histogram[digit] < wanted) above += shared.histogram[digit--];
        shared.digit = digit;
        shared.above = above;
    }
    block_sync();
}

// The key of rank k: exactly `k` of the keys (k <= count) are at or above it.
template <class Keys>
DEVICE uint64_t find_threshold(SelectShared &shared, Keys keys, int count, int k) {
    uint64_t prefix = 0;
    auto wanted = static_cast<uint32_t>(k);
    for (int shift = 56; shift >= 0; shift -= 8) {
        find_digit(shared, keys, count, prefix, shift, wanted);
        prefix |= static_cast<uint64_t>(shared.digit) << shift;
        wanted -= shared.above;
        const uint32_t same = shared.histogram[shared.digit];
        block_sync();
        if (same == wanted) break;  // all keys with this prefix are among the k largest
    }
    return prefix;
}

// Stores the k largest keys in shared.chosen, in any order. All threads of the block.
template <class Keys>
DEVICE void choose(SelectShared &shared, Keys keys, int count, int k) {
    const uint64_t threshold = find_threshold(shared, keys, count, k);
    if (thread_index() == 0) shared.count = 0;
    block_sync();
    for (int i = thread_index(); i < count; i += kThreads) {
        const uint64_t key = keys(i);
        if (key >= threshold) shared.chosen[atomic_add_u32(&shared.count, 1)] = key;
    }
    block_sync();
}

// Sorts shared.chosen, padded to 256 with zeros, in descending order: a bitonic network, one key per thread.
DEVICE void sort_chosen(SelectShared &shared, int k) {
    const int i = thread_index();
    if (i >= k) shared.chosen[i] = 0;
    for (int size = 2; size <= kMaxCandidates; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            block_sync();
            const uint64_t mine = shared.chosen[i], other = shared.chosen[i ^ stride];
            block_sync();
            const bool descending = (i & size) == 0, first = (i & stride) == 0;
            const bool keep_larger = descending == first;
            shared.chosen[i] = keep_larger == (mine > other) ? mine : other;
        }
    block_sync();
}

DEVICE float block_max(SelectShared &shared, float x) {
    x = warp_max(x);
    if (lane_index() == 0) shared.partial[warp_index()] = x;
    block_sync();
    for (int w = 0; w < kWarps; ++w) x = fmaxf(x, shared.partial[w]);
    block_sync();
    return x;
}

// The sum over all threads, which have the same top window. All threads of the block; for the first one.
DEVICE ExpSum block_sum(SelectShared &shared, ExpSum sum) {
#pragma unroll
    for (int i = 0; i < ExpSum::kWindows; ++i) {
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) sum.sums[i] += shfl_xor(sum.sums[i], lanes);
        if (lane_index() == 0) shared.sums[warp_index()][i] = sum.sums[i];
    }
    block_sync();
    if (thread_index() == 0)
        for (int w = 1; w < kWarps; ++w)
#pragma unroll
            for (int i = 0; i < ExpSum::kWindows; ++i) sum.sums[i] += shared.sums[w][i];
    return sum;
}

struct CandidateChunk {
    using Params = CandidateParams;
    static constexpr const char *kName = "candidates of a chunk";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 4;

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<SelectShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t row = block_index() / p.chunks;
        const int first = block_index() % p.chunks * kSelectChunk;
        const int count = p.vocab - first < kSelectChunk ? p.vocab - first : kSelectChunk;
        const float *logits = p.logits + row * p.stride + first;
        const uint32_t *mask = mask_of(p.masks, row);
        float largest = -3.4028235e38f;
        for (int i = thread_index(); i < count; i += kThreads)
            if (is_allowed(mask, first + i)) largest = fmaxf(largest, logits[i]);
        largest = block_max(shared, largest);
        ExpSum sum;
        sum.top = ExpSum::window_of(largest);
#pragma unroll 1  // (the windows of several logits at a time would take too many registers)
        for (int i = thread_index(); i < count; i += kThreads)
            if (is_allowed(mask, first + i)) sum.add_below_top(exp_power(logits[i]));
        sum = block_sum(shared, sum);
        if (thread_index() == 0) p.partial[block_index()] = sum;
        const int k = count < p.k ? count : p.k;
        choose(
            shared, [&](int i) { return key_of(logits[i], first + i, is_allowed(mask, first + i)); }, count,
            k);
        for (int i = thread_index(); i < p.k; i += kThreads)
            p.keys[int64_t{block_index()} * p.k + i] = i < k ? shared.chosen[i] : 0;
    }
};

struct CandidateRow {
    using Params = CandidateParams;
    static constexpr const char *kName = "candidates of a row";
    static constexpr int kThreads = cuda::kThreads, kBlocks = 4;

    static DEVICE ExpSum join_chunks(const Params &p, const ExpSum *partial) {
        ExpSum all = partial[0];
        for (int c = 1; c < p.chunks; ++c) all.add(partial[c]);
        return all;
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<SelectShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int64_t row = block_index();
        if (thread_index() == 0) p.sums[row] = join_chunks(p, p.partial + row * p.chunks);
        const uint64_t *keys = p.keys + row * p.chunks * p.k;
        const int k = p.vocab < p.k ? p.vocab : p.k;
        choose(
            shared, [&](int i) { return keys[i]; }, p.chunks * p.k, k);
        sort_chosen(shared, k);
        for (int i = thread_index(); i < k; i += kThreads)
            p.candidates[row * p.k + i] = entry_of(shared.chosen[i], p.logits + row * p.stride);
    }
};

}  // namespace

Kernel<ArgmaxParams> argmax_kernel() {
    return kernel_of<Argmax>();
}
Kernel<CandidateParams> candidate_chunk_kernel() {
    return kernel_of<CandidateChunk>();
}
Kernel<CandidateParams> candidate_row_kernel() {
    return kernel_of<CandidateRow>();
}
size_t candidate_shared() {
    return sizeof(SelectShared);
}

}  // namespace runnel::kernels::cuda
