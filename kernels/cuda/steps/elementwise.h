// What stands between the matrices and fits no other kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

// Gate::Act of program.h.
enum class Activation : int32_t { Silu, GeluTanh, GeluErf, ReluSquared, SiluClamped };

// out = act(gate) * up, or act(gate) without up. Any grid.
struct ActivateParams {
    const float *gate, *up;  // up may be null; out may be gate or up
    float *out;
    int64_t gate_stride, up_stride, out_stride;
    int32_t width, rows;
    Activation activation;
};
Kernel<ActivateParams> activate_kernel();

// Copy of program.h: for every token and i < count, `width` floats from in + i * in_piece to out + i *
// out_piece.
struct PieceCopy {
    const float *in;  // the first pieces of the first token
    float *out;       // no part of it is in a piece that this launch reads, or that it writes otherwise
    int64_t in_stride, out_stride;  // from token to token
    int64_t in_piece, out_piece;    // from piece to piece; in_piece 0: one piece, again and again
    int32_t count, width;
};

// A warp takes 128 floats of a piece at a time, 16 bytes a lane where the pieces allow it. Any grid. Each
// float is read once (a repeated piece: from a cache) and written once.
inline constexpr int kCopies = 4;  // most of a launch
inline constexpr int kCopyFloats = 128;
struct CopyParams {
    PieceCopy copy[kCopies];
    int32_t copies, tokens;
};
Kernel<CopyParams> copy_pieces_kernel();
// Blocks that have something to do.
int64_t copy_pieces_blocks(const CopyParams &params);

// x = cap * tanh(x / cap), in place. Any grid.
struct SoftcapParams {
    float *x;
    int64_t count;
    float cap;
};
Kernel<SoftcapParams> softcap_kernel();

}  // namespace runnel::kernels::cuda
