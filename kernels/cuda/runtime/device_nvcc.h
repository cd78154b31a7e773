// device.h as nvcc compiles it: inline PTX for sm_75 (Turing) and later. device.h documents each function.
// What sm_75 lacks is replaced by other instructions: cp.async by a load and a store, which are done when the
// function returns; the rest is in device_turing.h.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#error "the kernels need sm_75 or later (mma and ldmatrix)"
#endif

// This compilation is for sm_75.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define RUNNEL_TURING 1
#else
#define RUNNEL_TURING 0
#endif

#define DEVICE __device__ __forceinline__
#define DEVICE_DATA __device__ const

namespace runnel::kernels::cuda {

// --- coordinates -----------------------------------------------------------------------------------------

DEVICE int thread_index() {
    return static_cast<int>(threadIdx.x);
}
DEVICE int lane_index() {
    return static_cast<int>(threadIdx.x & 31u);
}
DEVICE int warp_index() {
    return static_cast<int>(threadIdx.x >> 5);
}
DEVICE int block_threads() {
    return static_cast<int>(blockDim.x);
}
DEVICE int block_index() {
    return static_cast<int>(blockIdx.x);
}
DEVICE int block_count() {
    return static_cast<int>(gridDim.x);
}

template <class Body, class TuringBody, class Params>
DEVICE void run_for_device(const Params &params) {
#if RUNNEL_TURING
    TuringBody::run(params);
#else
    Body::run(params);
#endif
}

template <class T>
DEVICE T &shared_memory() {
    extern __shared__ __align__(128) unsigned char arena[];
    return *reinterpret_cast<T *>(arena);
}

// --- synchronization -------------------------------------------------------------------------------------

DEVICE void block_sync() {
    __syncthreads();
}

DEVICE void warp_sync() {
    __syncwarp();
}
DEVICE void fence_gpu() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

DEVICE void grid_dep_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void grid_dep_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// --- warp collectives ------------------------------------------------------------------------------------

template <class T>
DEVICE T shfl(T value, int source_lane) {
    return __shfl_sync(0xffffffffu, value, source_lane);
}
template <class T>
DEVICE T shfl_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}
DEVICE uint32_t ballot(bool predicate) {
    return __ballot_sync(0xffffffffu, predicate);
}
DEVICE bool any(bool predicate) {
    return __any_sync(0xffffffffu, predicate) != 0;
}
DEVICE bool all(bool predicate) {
    return __all_sync(0xffffffffu, predicate) != 0;
}

template <class T>
DEVICE T warp_sum(T value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value = value + shfl_xor(value, mask);
    return value;
}

DEVICE float warp_max(float value) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) value = fmaxf(value, shfl_xor(value, mask));
    return value;
}

// --- memory ----------------------------------------------------------------------------------------------

DEVICE uint4 ldg128_stream(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEVICE uint2 ldg64_stream(const void *p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE uint32_t ldg32_stream(const void *p) {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

DEVICE uint4 ld128(const void *p) {
    return *static_cast<const uint4 *>(p);
}
DEVICE void st128(void *p, uint4 v) {
    *static_cast<uint4 *>(p) = v;
}
DEVICE uint2 ld64(const void *p) {
    return *static_cast<const uint2 *>(p);
}
DEVICE void st64(void *p, uint2 v) {
    *static_cast<uint2 *>(p) = v;
}

DEVICE uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
DEVICE uint4 lds128(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}
DEVICE uint2 lds64(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}
DEVICE uint32_t lds32(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
    return v;
}

#if RUNNEL_TURING

// The source does not change while a kernel copies from it, so loads may be moved before other stores.
DEVICE void cp_async16(void *shared, const void *global, bool valid = true) {
    uint4 v = {0, 0, 0, 0};
    if (valid)
        asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
            : "l"(global));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(shared)), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
DEVICE void cp_async_commit() {}
template <int Pending>
DEVICE void cp_async_wait() {}

#else

DEVICE void cp_async16(void *shared, const void *global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

#endif

// The bulk form needs sm_90 and a multiple of 16 bytes; older devices take an instruction per 128-byte line.
DEVICE void prefetch_l2(const void *p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes & ~15u));
#else
    for (uint32_t at = 0; at < bytes; at += 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(p) + at));
#endif
}

DEVICE void prefetch_l2_by_warp(const void *p, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    if (lane_index() == 0) prefetch_l2(p, bytes);
#else
    for (uint32_t at = 128 * static_cast<uint32_t>(lane_index()); at < bytes; at += 128 * 32)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char *>(p) + at));
#endif
}

DEVICE uint32_t atomic_add_u32(uint32_t *p, uint32_t v) {
    return atomicAdd(p, v);
}
DEVICE uint32_t atomic_inc_wrap_u32(uint32_t *p, uint32_t last) {
    return atomicInc(p, last);
}
DEVICE uint64_t atomic_max_u64(uint64_t *p, uint64_t v) {
    return atomicMax(reinterpret_cast<unsigned long long *>(p), static_cast<unsigned long long>(v));
}

// --- matrices --------------------------------------------------------------------------------------------

DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

DEVICE void mma_f16_k8(float (&c)[4], const uint32_t (&a)[2], uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
DEVICE void mma_s8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
}
DEVICE void mma_u8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
}

// --- bits and numbers ------------------------------------------------------------------------------------

DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
}
// (__byte_perm() clears the upper bits of the selector's nibbles.)
DEVICE uint32_t prmt_signs(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}
// One instruction each; for constant mask and bits, the compiler would make two.
DEVICE uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}
DEVICE uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t bits) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
    return r;
}
DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
DEVICE int popc(uint32_t x) {
    return __popc(x);
}
DEVICE int clz(uint32_t x) {
    return __clz(static_cast<int>(x));
}

DEVICE float fma_rn(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
DEVICE float sqrt_rn(float x) {
    return __fsqrt_rn(x);
}
DEVICE float rint_rn(float x) {
    return rintf(x);
}
DEVICE int32_t float_to_int_rn(float x) {
    return __float2int_rn(x);
}
DEVICE int32_t computed_anew(int32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
DEVICE uint32_t float_bits(float f) {
    return __float_as_uint(f);
}
DEVICE float bits_float(uint32_t u) {
    return __uint_as_float(u);
}

DEVICE uint16_t f32_to_f16(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
DEVICE float f16_to_f32(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
DEVICE float bf16_to_f32(uint16_t h) {
    return __uint_as_float(static_cast<uint32_t>(h) << 16);
}
DEVICE uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
DEVICE uint32_t h2_sub(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEVICE uint32_t h2_mul(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

}  // namespace runnel::kernels::cuda

#include "kernels/cuda/runtime/device_turing.h"

namespace runnel::kernels::cuda {

// --- what sm_75 lacks ------------------------------------------------------------------------------------

#if RUNNEL_TURING

using turing::f32_to_bf16;
using turing::mma_bf16_k16;
using turing::mma_f16_k16;
using turing::mma_s8_k16;
using turing::mma_s8_k32;
using turing::mma_u8_k32;
using turing::pack_bf16;
using turing::pack_f16;

#else

DEVICE void mma_f16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_bf16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void mma_s8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_u8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_s8_k16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

DEVICE uint16_t f32_to_bf16(float x) {
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
DEVICE uint32_t pack_f16(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
DEVICE uint32_t pack_bf16(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

#endif

}  // namespace runnel::kernels::cuda

#undef RUNNEL_TURING
