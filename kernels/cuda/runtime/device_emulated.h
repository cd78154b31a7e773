// device.h as g++ compiles it for the emulator: declarations of functions that tests/simt/ defines. device.h
// documents each. Collectives carry their call site, so that an error can name where threads diverged.
#pragma once

#include <bit>
#include <cstdint>
#include <source_location>
#include <type_traits>

#define DEVICE inline
#define DEVICE_DATA constexpr

namespace runnel::kernels::cuda {

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

using Place = std::source_location;

// --- coordinates -----------------------------------------------------------------------------------------

int thread_index();
int lane_index();
int warp_index();
int block_threads();
int block_index();
int block_count();

// Whether the emulated device is an sm_75: cp_async16() then copies immediately.
bool is_turing();

template <class Body, class TuringBody, class Params>
void run_for_device(const Params &params) {
    if (is_turing())
        TuringBody::run(params);
    else
        Body::run(params);
}

// The block's shared memory; aborts the launch with an exception if it has fewer than `bytes`.
void *shared_memory_bytes(size_t bytes);

template <class T>
T &shared_memory() {
    static_assert(std::is_trivially_default_constructible_v<T>);
    return *static_cast<T *>(shared_memory_bytes(sizeof(T)));
}

// --- synchronization -------------------------------------------------------------------------------------

void block_sync(Place place = Place::current());
void warp_sync(Place place = Place::current());
void fence_gpu();
void grid_dep_wait();
void grid_dep_trigger();

// --- warp collectives ------------------------------------------------------------------------------------

// A lane receives the bits of lane source_lane, or keeps its own if source_lane is outside 0..31.
uint32_t shfl_bits(uint32_t value, int source_lane, Place place);

template <class T>
T shfl(T value, int source_lane, Place place = Place::current()) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    if constexpr (sizeof(T) == 4) {
        return std::bit_cast<T>(shfl_bits(std::bit_cast<uint32_t>(value), source_lane, place));
    } else {
        const uint64_t bits = std::bit_cast<uint64_t>(value);
        const uint64_t low = shfl_bits(static_cast<uint32_t>(bits), source_lane, place);
        const uint64_t high = shfl_bits(static_cast<uint32_t>(bits >> 32), source_lane, place);
        return std::bit_cast<T>(high << 32 | low);
    }
}
template <class T>
T shfl_xor(T value, int mask, Place place = Place::current()) {
    return shfl(value, lane_index() ^ mask, place);
}
uint32_t ballot(bool predicate, Place place = Place::current());
inline bool any(bool predicate, Place place = Place::current()) {
    return ballot(predicate, place) != 0;
}
inline bool all(bool predicate, Place place = Place::current()) {
    return ballot(predicate, place) == ~0u;
}

template <class T>
T warp_sum(T value, Place place = Place::current()) {
    for (int mask = 16; mask > 0; mask /= 2) value = value + shfl_xor(value, mask, place);
    return value;
}
float warp_max(float value, Place place = Place::current());

// --- memory ----------------------------------------------------------------------------------------------

uint4 ldg128_stream(const void *p);
uint2 ldg64_stream(const void *p);
uint32_t ldg32_stream(const void *p);
uint4 ld128(const void *p);
void st128(void *p, uint4 v);
uint2 ld64(const void *p);
void st64(void *p, uint2 v);
uint32_t shared_address(const void *p);
uint4 lds128(uint32_t address);
uint2 lds64(uint32_t address);
uint32_t lds32(uint32_t address);
void cp_async16(void *shared, const void *global, bool valid = true);
void cp_async_commit();
void cp_async_wait_pending(int pending);
template <int Pending>
void cp_async_wait() {
    cp_async_wait_pending(Pending);
}
void prefetch_l2(const void *p, uint32_t bytes);
inline void prefetch_l2_by_warp(const void *p, uint32_t bytes) {
    if (lane_index() == 0) prefetch_l2(p, bytes);
}
uint32_t atomic_add_u32(uint32_t *p, uint32_t v);
uint32_t atomic_inc_wrap_u32(uint32_t *p, uint32_t last);
uint64_t atomic_max_u64(uint64_t *p, uint64_t v);

// --- matrices --------------------------------------------------------------------------------------------

void ldmatrix_x4(uint32_t (&r)[4], const void *row, Place place = Place::current());
void ldmatrix_x2(uint32_t (&r)[2], const void *row, Place place = Place::current());
void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, Place place = Place::current());
void mma_f16_k8(float (&c)[4], const uint32_t (&a)[2], uint32_t b, Place place = Place::current());
void mma_f16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                 Place place = Place::current());
void mma_bf16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  Place place = Place::current());
void mma_s8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b, Place place = Place::current());
void mma_u8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b, Place place = Place::current());
void mma_s8_k16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b, Place place = Place::current());
void mma_s8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                Place place = Place::current());
void mma_u8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                Place place = Place::current());

// --- bits and numbers ------------------------------------------------------------------------------------

uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector);
uint32_t prmt_signs(uint32_t a, uint32_t b, uint32_t selector);
inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
    return (a & mask) | bits;
}
inline uint32_t and_xor(uint32_t a, uint32_t mask, uint32_t bits) {
    return (a & mask) ^ bits;
}
inline int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
    for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    return c;
}
inline int popc(uint32_t x) {
    return std::popcount(x);
}
inline int clz(uint32_t x) {
    return std::countl_zero(x);
}

// (Every NaN that an instruction makes has the same bits, as the PTX ISA says: kernels may store them.)
inline float fma_rn(float a, float b, float c) {
    const float result = __builtin_fmaf(a, b, c);
    return result == result ? result : std::bit_cast<float>(0x7fffffffu);
}
inline float sqrt_rn(float x) {
    return __builtin_sqrtf(x);
}
inline float rint_rn(float x) {
    return __builtin_rintf(x);
}
int32_t float_to_int_rn(float x);
inline int32_t computed_anew(int32_t x) {
    return x;
}
inline uint32_t float_bits(float f) {
    return std::bit_cast<uint32_t>(f);
}
inline float bits_float(uint32_t u) {
    return std::bit_cast<float>(u);
}
uint16_t f32_to_f16(float x);
uint16_t f32_to_bf16(float x);
float f16_to_f32(uint16_t h);
inline float bf16_to_f32(uint16_t h) {
    return bits_float(static_cast<uint32_t>(h) << 16);
}
uint32_t pack_f16(float lo, float hi);
uint32_t pack_bf16(float lo, float hi);
uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c);
uint32_t h2_sub(uint32_t a, uint32_t b);
uint32_t h2_mul(uint32_t a, uint32_t b);

}  // namespace runnel::kernels::cuda

#include "kernels/cuda/runtime/device_turing.h"
