// The recurrent steps of recurrent_steps.h: ShortConv, SoftPool, ScanGate, LinearScan, SelectiveScan.
//
// Prefill and decode use the same sequential form, so that every chunking gives the same bits. The state
// slots that a batch reads and writes are listed in device memory (ScanBatch), so recorded launches serve
// every batch. All kernels accept any grid.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kScanThreads = 128;
inline constexpr int kMostScanKeys = 256;     // dk of LinearScan
inline constexpr int kMostScanElements = 64;  // n of SelectiveScan

// Tokens [first, first + count) of the batch. `state`: the slot that the sequence reads, or -1 for zeros.
// The sequence's writes are ScanBatch::writes[first_write .. first_write + writes).
struct ScanSequence {
    int32_t first, count, state, first_write, writes;
    int32_t past = 0;  // tokens of the sequence before these
};
// Stores the state after the first `tokens` tokens of the sequence in the slot.
struct ScanWrite {
    int32_t sequence, tokens, slot;
};
struct ScanCounts {
    int32_t sequences, writes;
};
struct ScanBatch {
    const ScanCounts *counts;
    const ScanSequence *sequences;
    const ScanWrite *writes;
    const int32_t *sequence_of;  // of each token
};

// The states of a step: that of slot s is at first + s * stride.
struct ScanStates {
    float *first;
    int64_t stride;
};

// A thread computes one channel of kConvTokens tokens. State: [taps - 1][width].
inline constexpr int kConvTokens = 8;
struct ShortConvParams {
    const float *in, *weight, *bias;  // weight: [taps][width]; bias may be null
    float *out;
    int64_t in_stride, out_stride;
    int32_t width, taps, tokens;
    bool silu;
    ScanStates states;
    ScanBatch batch;
};
Kernel<ShortConvParams> short_conv_kernel();

// SoftPool: a thread per channel of a token. State: [rows - 1][all] of values, then of scores, all: the width of score.
struct SoftPoolParams {
    const float *value, *score, *bias;  // bias: [block][all]
    float *out;
    int64_t value_stride, score_stride, out_stride;
    int32_t width, all, block, rows, tokens;
    ScanStates states;
    ScanBatch batch;
};
Kernel<SoftPoolParams> soft_pool_kernel();

// A thread per element.
enum class GateForm : int32_t { Softplus, Sigmoid, Exponential };  // ScanGate::Form
struct ScanGateParams {
    const float *in, *bias, *rate;  // bias and rate may be null
    float *step, *decay;            // may be null or `in`; step only with Softplus
    int64_t in_stride, step_stride, decay_stride;
    int32_t width, shared, tokens;  // shared: number of adjacent elements with the same rate
    GateForm form;
    float bound;
};
Kernel<ScanGateParams> scan_gate_kernel();

// A warp takes kScanColumns columns of a head's matrix through a sequence's tokens, in registers. State:
// [heads][dv][dk]. Rows of q, k, erase_read and erase_write begin at multiples of 16 bytes if dk is a multiple of 4.
inline constexpr int kScanColumns = 4;
struct LinearScanParams {
    const float *q, *k, *v;
    const float *decay, *strength;          // may be null
    const float *erase_read, *erase_write;  // both are null, or neither
    const float *rate, *skip;               // [heads]; may be null
    float *out;
    int64_t q_stride, k_stride, v_stride, decay_stride, strength_stride, erase_read_stride,
        erase_write_stride, out_stride;
    int32_t heads, key_heads, dk, dv;
    bool neighbors, channel_decay, delta, reads_before;
    ScanStates states;
    ScanBatch batch;
};
// general: also with erase_read and erase_write, or with reads_before.
Kernel<LinearScanParams> linear_scan_kernel(int32_t dk, bool general);

// A warp takes kScanChannels channels through a sequence's tokens, in registers. State: [width][n]. Rows of b
// and c begin at multiples of 16 bytes.
inline constexpr int kScanChannels = 8;
struct SelectiveScanParams {
    const float *x, *dt, *b, *c;
    const float *rate, *skip;  // [n][width], [width]
    float *out;
    int64_t x_stride, dt_stride, b_stride, c_stride, out_stride;
    int32_t width, n;
    ScanStates states;
    ScanBatch batch;
};
Kernel<SelectiveScanParams> selective_scan_kernel(int32_t n);

}  // namespace runnel::kernels::cuda
