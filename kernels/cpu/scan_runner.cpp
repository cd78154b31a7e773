#include "kernels/cpu/scan_runner.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace runnel::kernels::cpu {
namespace {

constexpr int64_t kChannels = 256;  // channels in a unit of ShortConv and SoftPool

int64_t blocks_of(int64_t width, int64_t block) {
    return (width + block - 1) / block;
}

// Calls body(first token, tokens, state read, slot written) for the pieces of a span between stored states;
// each piece reads the state that the previous one wrote.
template <typename F>
void for_pieces(const SequenceSpan &sequence, F &&body) {
    int32_t done = 0;
    StateId from = sequence.state;
    for (const StateWrite &write : sequence.state_writes) {
        body(sequence.first + done, write.tokens - done, from, write.slot);
        done = write.tokens;
        from = write.slot;
    }
}

}  // namespace

void ScanRunner::run(const ShortConv &step, const Batch &batch, int thread) noexcept {
    const int64_t channels = width(step.in), blocks = blocks_of(channels, kChannels);
    const auto sequences = static_cast<int64_t>(batch.sequences.size());
    s_.pool->for_ranges(thread, sequences * blocks, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const int64_t c0 = unit % blocks * kChannels;
            conv(step, batch.sequences[static_cast<size_t>(unit / blocks)], c0,
                 std::min(c0 + kChannels, channels));
        }
    });
}

void ScanRunner::conv(const ShortConv &step, const SequenceSpan &sequence, int64_t c0,
                      int64_t c1) const noexcept {
    static constexpr std::array<float, kChannels> kZeros{};
    const int64_t channels = width(step.in);
    const auto taps = static_cast<int32_t>(s_.program->weights[static_cast<size_t>(step.weight)].rows);
    const float *before = s_.states->at(sequence.state, step.state), *bias = vector_of(step.bias);
    // Input row `token` of the span. Negative rows come from the state, or are zeros at the start of a sequence.
    const auto input = [&](int32_t token) {
        if (token >= 0) return static_cast<const float *>(row(step.in, sequence.first + token) + c0);
        return before ? before + (taps - 1 + token) * channels + c0 : kZeros.data();
    };
    std::array<const float *, kMostTaps> rows;
    for (int32_t t = 0; t < sequence.count; ++t) {
        for (int32_t j = 0; j < taps; ++j) rows[static_cast<size_t>(j)] = input(t - taps + 1 + j);
        s_.kernels->conv(rows.data(), taps, vector_of(step.weight) + c0, channels, bias ? bias + c0 : nullptr,
                         step.silu, c1 - c0, row(step.out, sequence.first + t) + c0);
    }
    for (const StateWrite &write : sequence.state_writes)
        for (int32_t j = 0; j < taps - 1; ++j)
            std::copy_n(input(write.tokens - taps + 1 + j), c1 - c0,
                        s_.states->at(write.slot, step.state) + j * channels + c0);
}

void ScanRunner::run(const SoftPool &step, const Batch &batch, int thread) noexcept {
    const int64_t channels = width(step.out), blocks = blocks_of(channels, kChannels);
    const auto sequences = static_cast<int64_t>(batch.sequences.size());
    s_.pool->for_ranges(thread, sequences * blocks, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const int64_t c0 = unit % blocks * kChannels;
            pool(step, batch.sequences[static_cast<size_t>(unit / blocks)], c0,
                 std::min(c0 + kChannels, channels));
        }
    });
}

void ScanRunner::pool(const SoftPool &step, const SequenceSpan &sequence, int64_t c0,
                      int64_t c1) const noexcept {
    const int64_t channels = width(step.out), all = width(step.score);
    const int32_t rows = step.rows(), kept = rows - 1;
    const float *before = s_.states->at(sequence.state, step.state), *bias = vector_of(step.bias);
    // Row `token` of the span of the values or, with `scores`, of the scores. Negative rows come from the state.
    const auto input = [&](bool scores, int32_t token) {
        if (token >= 0)
            return static_cast<const float *>(row(scores ? step.score : step.value, sequence.first + token));
        return before + ((scores ? kept : 0) + kept + token) * all;
    };
    std::array<const float *, SoftPool::kMostRows> values, scores, biases;
    for (int32_t t = 0; t < sequence.count; ++t) {
        float *out = row(step.out, sequence.first + t) + c0;
        const int32_t end = sequence.past + t + 1;
        if (end % step.block != 0) {
            std::fill_n(out, c1 - c0, 0.0f);
            continue;
        }
        size_t count = 0;
        for (int32_t j = std::max(0, rows - end); j < rows; ++j, ++count) {
            const int64_t at = c0 + (step.overlaps && j >= step.block ? channels : 0);
            values[count] = input(false, t - kept + j) + at;
            scores[count] = input(true, t - kept + j) + at;
            biases[count] = bias + j % step.block * all + at;
        }
        s_.kernels->pool(values.data(), scores.data(), biases.data(), static_cast<int64_t>(count), c1 - c0,
                         out);
    }
    for (const StateWrite &write : sequence.state_writes) {
        float *state = s_.states->at(write.slot, step.state);
        for (const bool is_score : {false, true})
            for (int32_t j = 0; j < kept; ++j, state += all)
                for (int64_t at = c0; at < all; at += channels) {  // the columns of the unit, of both halves
                    const int32_t token = write.tokens - kept + j;
                    if (sequence.past + token < 0)
                        std::fill_n(state + at, c1 - c0, 0.0f);
                    else
                        std::copy_n(input(is_score, token) + at, c1 - c0, state + at);
                }
    }
}

void ScanRunner::run(const ScanGate &step, const Batch &batch, int thread) noexcept {
    const int64_t n = width(step.in);
    const float *bias = vector_of(step.bias), *rate = vector_of(step.rate);
    const int64_t rates = rate ? s_.program->weights[static_cast<size_t>(step.rate)].cols : n;
    const int64_t shared = n / rates;  // number of neighbors that share a rate
    const auto piece = [&](int32_t t, int64_t at, int64_t count) {
        s_.kernels->gate(step.form, row(step.in, t) + at, bias ? bias + at : nullptr,
                         rate ? rate + at / shared : nullptr, shared > 1, step.bound, count,
                         step.step == kNoSlot ? nullptr : row(step.step, t) + at,
                         step.decay == kNoSlot ? nullptr : row(step.decay, t) + at);
    };
    s_.pool->for_ranges(thread, static_cast<int64_t>(batch.tokens.size()), [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t)
            if (shared == 1)
                piece(static_cast<int32_t>(t), 0, n);
            else
                for (int64_t at = 0; at < n; at += shared) piece(static_cast<int32_t>(t), at, shared);
    });
}

void ScanRunner::run(const LinearScan &step, const Batch &batch, int thread) noexcept {
    const int64_t blocks = blocks_of(step.dv, kScanColumns), units = step.heads * blocks;
    const auto sequences = static_cast<int64_t>(batch.sequences.size());
    s_.pool->for_ranges(thread, sequences * units, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const int64_t own = unit % units;
            linear(step, batch.sequences[static_cast<size_t>(unit / units)],
                   static_cast<int32_t>(own / blocks), own % blocks);
        }
    });
}

void ScanRunner::linear(const LinearScan &step, const SequenceSpan &sequence, int32_t head,
                        int64_t block) const noexcept {
    const int32_t key_head = step.neighbors ? head / (step.heads / step.key_heads) : head % step.key_heads;
    const int64_t column = head * step.dv + block * kScanColumns,
                  in_state = int64_t{head} * step.dk * step.dv + block * kScanColumns * step.dk;
    const bool channel_decay = step.decay != kNoSlot && width(step.decay) != step.heads;
    const float *rate = vector_of(step.rate), *skip = vector_of(step.skip);
    for_pieces(sequence, [&](int32_t t, int32_t tokens, StateId from, StateId to) {
        const LinearScanPiece piece{
            .q = row(step.q, t) + key_head * step.dk,
            .k = row(step.k, t) + key_head * step.dk,
            .v = row(step.v, t) + column,
            .decay = step.decay == kNoSlot ? nullptr
                                           : row(step.decay, t) + (channel_decay ? head * step.dk : head),
            .strength = step.strength == kNoSlot ? nullptr : row(step.strength, t) + head,
            .erase_read = step.erase_read == kNoSlot ? nullptr : row(step.erase_read, t) + key_head * step.dk,
            .erase_write =
                step.erase_write == kNoSlot ? nullptr : row(step.erase_write, t) + key_head * step.dk,
            .out = row(step.out, t) + column,
            .qk_stride = width(step.q),
            .v_stride = width(step.v),
            .decay_stride = step.decay == kNoSlot ? 0 : width(step.decay),
            .strength_stride = step.strength == kNoSlot ? 0 : width(step.strength),
            .erase_stride = step.erase_read == kNoSlot ? 0 : width(step.erase_read),
            .out_stride = width(step.out),
            .dk = step.dk,
            .cols = std::min<int64_t>(kScanColumns, step.dv - block * kScanColumns),
            .fixed_decay = rate ? std::exp(rate[head]) : 1.0f,
            .skip = skip ? skip[head] : 0.0f,
            .channel_decay = channel_decay,
            .delta = step.delta,
            .reads_before = step.reads_before,
            .streams = t + tokens == sequence.first + sequence.count};
        const float *source = s_.states->at(from, step.state);
        s_.kernels->linear(piece, tokens, source ? source + in_state : nullptr,
                           s_.states->at(to, step.state) + in_state);
    });
}

void ScanRunner::run(const SelectiveScan &step, const Batch &batch, int thread) noexcept {
    const int64_t blocks = blocks_of(width(step.x), kScanColumns);
    const auto sequences = static_cast<int64_t>(batch.sequences.size());
    s_.pool->for_ranges(thread, sequences * blocks, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit)
            selective(step, batch.sequences[static_cast<size_t>(unit / blocks)], unit % blocks);
    });
}

void ScanRunner::selective(const SelectiveScan &step, const SequenceSpan &sequence,
                           int64_t block) const noexcept {
    const int64_t channels = width(step.x), n = width(step.b), column = block * kScanColumns;
    for_pieces(sequence, [&](int32_t t, int32_t tokens, StateId from, StateId to) {
        const SelectiveScanPiece piece{.x = row(step.x, t) + column,
                                       .dt = row(step.dt, t) + column,
                                       .b = row(step.b, t),
                                       .c = row(step.c, t),
                                       .rate = vector_of(step.rate) + column,
                                       .skip = vector_of(step.skip) + column,
                                       .out = row(step.out, t) + column,
                                       .stride = channels,
                                       .bc_stride = n,
                                       .rate_stride = channels,
                                       .n = n,
                                       .cols = std::min<int64_t>(kScanColumns, channels - column)};
        const float *source = s_.states->at(from, step.state);
        s_.kernels->selective(piece, tokens, source ? source + column * n : nullptr,
                              s_.states->at(to, step.state) + column * n);
    });
}

}  // namespace runnel::kernels::cpu
