// Elementwise steps that no other kernel includes.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// Activation::Kind of program.h.
enum class ActivationKind : int32_t {
    Silu,
    GeluTanh,
    GeluErf,
    ReluSquared,
    SiluClamped,
    Sigmoid,
    Relu,
    Clamp,
    XIelu,
    Identity,
    SiluThenLimit,
    LimitThenSilu,
    Tanh,
    SignedRoot
};

// out = act(gate) * up, or act(gate) without up. Any grid.
struct ActivateParams {
    const float *gate, *up;  // up may be null; out may be gate or up
    float *out;
    int64_t gate_stride, up_stride, out_stride;
    int32_t width, rows;
    ActivationKind activation;
    float positive = 0, negative = 0, beta = 0, eps = 0;  // Activation::Parameters
};
Kernel<ActivateParams> activate_kernel();

// Copy of program.h: for every token and i < count, copies `width` floats from in + i *
// in_piece to out + i * out_piece.
struct PieceCopy {
    const float *in;                // the first slices of the first token
    float *out;                     // must not overlap any other slice that this launch reads or writes
    int64_t in_stride, out_stride;  // from token to token
    int64_t in_piece, out_piece;    // from slice to slice; in_piece 0: one slice, repeated
    int32_t count, width;
};

// A warp copies 128 floats of a slice at a time, 16 bytes per lane if the alignment allows it. Any grid. Each
// float is read once (a repeated slice: from a cache) and written once.
inline constexpr int kCopies = 4;  // the most copies per launch
inline constexpr int kCopyFloats = 128;
struct CopyParams {
    PieceCopy copy[kCopies];
    int32_t copies, tokens;
};
Kernel<CopyParams> copy_pieces_kernel();
// Number of blocks with work.
int64_t copy_pieces_blocks(const CopyParams &params);

// Mix of program.h, with the slices of one token after the other of the slots: in[i] and out[j] are those of the first
// token. Any grid.
inline constexpr int kMixSlices = 9;
struct MixParams {
    struct Slice {
        float *first;
        int64_t stride;  // from token to token
    };
    Slice in[kMixSlices], out[kMixSlices];
    const float *coefficients;  // null: all are 1
    int64_t coefficients_stride;
    int32_t inputs, outputs, width, tokens;
    float scale;
};
Kernel<MixParams> mix_kernel();

// Lerp of program.h. Each row of `from` and `to` is read once, whatever the number of outputs. Any grid.
inline constexpr int kLerpOutputs = 8;
struct LerpParams {
    struct Output {
        float *out;
        int64_t stride;  // from token to token
    };
    const float *from, *to, *weight, *coefficients;  // may be null
    int64_t from_stride, to_stride, coefficients_stride;
    Output output[kLerpOutputs];
    int32_t outputs, width, tokens;
};
Kernel<LerpParams> lerp_kernel();

// x = cap * tanh(x / cap), in place. Any grid.
struct SoftcapParams {
    float *x;
    int64_t count;
    float cap;
};
Kernel<SoftcapParams> softcap_kernel();

}  // namespace runnel::kernels::cuda
