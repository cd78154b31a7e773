// The functions of device.h that sm_75 (Turing) lacks, built from those it has. Used by
// device_nvcc.h, and by the emulator when it emulates such a device.
//
//   - f16: m16n8k16 is two m16n8k8, each of which rounds its sums: attention and F16 matrices
//     may differ in the last bits from later devices, which also differ among themselves. Sums
//     of integers are exact.
//   - int8: m16n8k32 and m16n8k16 are put together from m8n8k16, exactly.
//   - bf16: sm_75 has no bf16 product. Products of two bf16 numbers are exact in float32, so
//     fma gives the same result after shuffles that bring a lane its rows and columns: about
//     190 instructions for one. Long prompts with a bf16 cache are therefore slow there, but
//     such a cache is not refused; f16, the default, is not affected.
//   - conversions of two numbers at once, and of one to bf16, take one or two instructions
//     more.
//
// Uses mma_f16_k8, mma_s8_m8n8k16, mma_u8_m8n8k16 and shfl of device.h, and plain arithmetic.
#pragma once

namespace runnel::kernels::cuda::turing {

DEVICE void mma_f16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_f16_k8(c, {a[0], a[1]}, b[0]);
    mma_f16_k8(c, {a[2], a[3]}, b[1]);
}

DEVICE void mma_s8_k16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b) {
    mma_s8_m8n8k16(c[0], c[1], a[0], b);
    mma_s8_m8n8k16(c[2], c[3], a[1], b);
}
DEVICE void mma_s8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_s8_k16(c, {a[0], a[1]}, b[0]);
    mma_s8_k16(c, {a[2], a[3]}, b[1]);
}

DEVICE void mma_u8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    for (int half = 0; half < 2; ++half) {
        mma_u8_m8n8k16(c[0], c[1], a[2 * half], b[half]);
        mma_u8_m8n8k16(c[2], c[3], a[2 * half + 1], b[half]);
    }
}

// Adds the products of two pairs of numbers.
DEVICE float add_bf16_pair(uint32_t a, uint32_t b, float c) {
    c = fma_rn(bits_float(a << 16), bits_float(b << 16), c);
    return fma_rn(bits_float(a & 0xffff0000u), bits_float(b & 0xffff0000u), c);
}

// Lane 4g + t gets rows g and g + 8 of A from the lanes 4g + j, columns 2t and 2t + 1 of B from the lanes
// 8t + j and 8t + 4 + j.
DEVICE void mma_bf16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    const int row = lane_index() & ~3, column = (lane_index() & 3) * 8;
#ifdef __CUDACC__
#pragma unroll 1  // a quarter of the code size; kernels contain a dozen copies
#endif
    for (int j = 0; j < 4; ++j)
        for (int half = 0; half < 2; ++half) {
            const uint32_t upper = shfl(a[2 * half], row + j), lower = shfl(a[2 * half + 1], row + j);
            const uint32_t first = shfl(b[half], column + j), second = shfl(b[half], column + 4 + j);
            c[0] = add_bf16_pair(upper, first, c[0]);
            c[1] = add_bf16_pair(upper, second, c[1]);
            c[2] = add_bf16_pair(lower, first, c[2]);
            c[3] = add_bf16_pair(lower, second, c[3]);
        }
}

// Rounds to nearest even; every NaN becomes 0x7fff, as with the instruction of later devices.
DEVICE uint16_t f32_to_bf16(float x) {
    const uint32_t bits = float_bits(x);
    return static_cast<uint16_t>(x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
DEVICE uint32_t pack_bf16(float lo, float hi) {
    return f32_to_bf16(lo) | static_cast<uint32_t>(f32_to_bf16(hi)) << 16;
}
DEVICE uint32_t pack_f16(float lo, float hi) {
    return f32_to_f16(lo) | static_cast<uint32_t>(f32_to_f16(hi)) << 16;
}

}  // namespace runnel::kernels::cuda::turing
