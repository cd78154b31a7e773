// Everything a CUDA kernel uses beyond plain C++: the only header with PTX and vendor intrinsics.
//
// Kernels are written once, in .cu files, and compiled twice: by nvcc for the device (device_nvcc.h: inline
// PTX) and by g++ for the emulator of tests/simt/ (device_emulated.h: declarations; every function below
// checks its preconditions there). Kernels contain no asm, no __CUDA_ARCH__ and no CUDA built-ins.
//
// Rules for kernels, which the emulator enforces:
//   - blocks and grids are one-dimensional, a block is whole warps;
//   - every collective (marked "warp" or "block" below) is reached by all its threads at one place in the
//     source: not in divergent code, and not after an early return;
//   - shared memory is one struct, shared_memory<T>(), whose size the launch states;
//   - matrices whose contents never change are read with ldg*_stream, everything else with plain C++ or
//     ld128;
//   - a kernel launched as a dependent (programmatic dependent launch) may read only weights before
//     grid_dep_wait(). Every thread executes it, or waits at a barrier for a thread that did. grid_dep_trigger()
//     comes after it, as early as possible: the next launch can then read its weights while this one runs. (Its
//     grid_dep_wait() waits for the end of this launch, wherever the trigger is.)
//
// Float arithmetic: -fmad=false on the device and -ffp-contract=off on the host, so that a * b + c rounds
// twice in both and fma_rn once in both; +, -, *, / and sqrt_rn are IEEE on both. With the polynomials of
// math.h all float results have the same bits on every device and in the emulator, except those of the
// floating-point mma, whose order of summation the hardware does not specify.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include "kernels/cuda/runtime/device_nvcc.h"
#else
#include "kernels/cuda/runtime/device_emulated.h"
#endif

// DEVICE marks a function of kernels, DEVICE_DATA a constant array that they index.
//
// The functions that both headers provide, in namespace runnel::kernels::cuda:
//
// coordinates
//   int thread_index(), lane_index(), warp_index()     in the block; in the warp; of the warp in the block
//   int block_threads(), block_index(), block_count()
//   T &shared_memory<T>()                              the block's shared memory, 128-byte aligned, unwritten
//
// synchronization
//   block_sync()                                       block: all threads
//   warp_sync()                                        warp: also orders memory among the lanes
//   fence_gpu()                                        device-wide acquire and release: orders what this
//                                                      thread did or saw (also through a block_sync) before
//                                                      its later atomics, and its earlier atomics before
//                                                      its later accesses
//   grid_dep_wait(), grid_dep_trigger()                programmatic dependent launch; nothing in code for
//                                                      less than sm_90
//
// warp collectives (all 32 lanes)
//   T shfl(T, source_lane), shfl_xor(T, mask)       T: int, uint32_t, float, or 64 bits (two shuffles)
//   uint32_t ballot(bool); bool any(bool), all(bool)
//   float warp_sum(float), warp_max(float); int warp_sum(int)           xor tree 16, 8, 4, 2, 1
//
// memory
//   uint4 ldg128_stream(p), uint2 ldg64_stream(p), uint32_t ldg32_stream(p)
//                                                      immutable weights: read around L1
//   uint4 ld128(p), st128(p, uint4), uint2 ld64(p), st64(p, uint2)       one access; p aligned to its width
//   uint32_t shared_address(p)                         a place in shared memory as 32 bits
//   uint4 lds128(address), uint2 lds64(address), uint32_t lds32(address)       one access to it; aligned to its width
//   cp_async16(shared, global, valid)                  16 bytes, zeros if !valid; arrives at cp_async_wait
//   cp_async_commit(), cp_async_wait<N>()              closes a group; waits for all but the last N groups
//   prefetch_l2(p, bytes), prefetch_l2_by_warp(p, bytes)                 a hint, of a thread or of a warp together
//   uint32_t atomic_add_u32(p, v), uint32_t atomic_inc_wrap_u32(p, last), uint64_t atomic_max_u64(p, v)
//                                                      device-wide, relaxed (order with fence_gpu); return
//                                                      the old value. inc_wrap: old >= last ? 0 : old + 1.
//
// matrices (warp collectives). Lane = 4 g + t; registers hold two 16-bit values, low first.
//   ldmatrix_x4(uint32_t (&r)[4], row), ldmatrix_x2(uint32_t (&r)[2], row), and ldmatrix_x4_trans
//       8x8 matrices of 16-bit values in shared memory; lane i gives the address of row i % 8 of matrix i / 8
//       (16-byte aligned; x2 uses lanes 0-15). r[m]: row g, columns 2t and 2t+1 of matrix m (trans: of m^T).
//   mma_f16_k16, mma_bf16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
//       c += a b. A 16x16: a[0] (row g, k 2t, 2t+1), a[1] (g+8, 2t), a[2] (g, 8+2t), a[3] (g+8, 8+2t);
//       B 16x8: b[0] (k 2t, 2t+1, column g), b[1] (8+2t, g);
//       C 16x8: c[0] (row g, column 2t), c[1] (g, 2t+1), c[2] (g+8, 2t), c[3] (g+8, 2t+1).
//       f32 sums in unspecified order: exact where all of them are integers below 2^24.
//   mma_f16_k8(float (&c)[4], const uint32_t (&a)[2], uint32_t b)                  the same with k 0..7
//   mma_s8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])    c += a b, of int8: exact
//       A 16x32: a[0] (row g, k 4t..4t+3), a[1] (g+8, 4t), a[2] (g, 16+4t), a[3] (g+8, 16+4t), low byte first;
//       B 32x8: b[0] (k 4t..4t+3, column g), b[1] (16+4t, g); C as above.
//   mma_u8_k32(...)                                                                the same, A of uint8
//   mma_s8_k16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b)                mma_s8_k32 with k 0..15
//   mma_s8_m8n8k16, mma_u8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b)    its rows 0..7 alone, k 0..15
//
// bits and numbers
//   uint32_t prmt(a, b, selector)                      nibble i of the selector, 0..7: the byte of a or b for byte i
//   uint32_t prmt_signs(a, b, selector)                the same; 8..15: its sign in all bits of byte i
//   uint32_t and_or(a, mask, bits): (a & mask) | bits, and_xor(a, mask, bits): (a & mask) ^ bits
//   int popc(x), clz(x); int32_t dp4a(a, b, c): c + the products of four int8
//   float fma_rn(a, b, c), sqrt_rn(x), rint_rn(x); int32_t float_to_int_rn(x)         (saturates; NaN: 0)
//   uint32_t float_bits(f), float bits_float(u)
//   int32_t computed_anew(x)               x, opaque to the compiler: values that a loop derives from it are
//                                          recomputed each time and take no register outside of the loop
//   uint16_t f32_to_f16(x), f32_to_bf16(x); float f16_to_f32(h), bf16_to_f32(h)    to nearest even
//   uint32_t pack_f16(lo, hi), pack_bf16(lo, hi)       two floats rounded into one register
//   uint32_t h2_fma(a, b, c), h2_sub(a, b), h2_mul(a, b)                two f16 at once, each rounded once
//
// versions
//   run_for_device<Usual, Turing>(params)  Usual::run(params); on sm_75 Turing::run(params) (SharedBytes in
//                                          kernel.h)
