// What sm_75 (Turing) lacks of device.h, made of what it has. For device_nvcc.h, and for the emulator, which
// runs the same when it emulates such a device.
//
//   - f16: m16n8k16 is two m16n8k8, each of which rounds its sums: attention and matrices of F16 may differ
//   in
//     the last bits from what later devices give, as those do among themselves. Sums of integers are exact.
//   - bf16: sm_75 has no such product at all. Products of two bf16 numbers are exact in float32, so fma gives
//   what
//     the instruction would, after shuffles that bring a lane the rows and columns it needs: some 190
//     instructions for one. A cache of that type is therefore slow in long prompts there, but no model and no
//     file that asks for it is turned away; f16, the default, loses nothing.
//   - conversions of two numbers at once, and of one to bf16, take an instruction or two more.
//
// Uses of device.h: mma_f16_k8, shfl, and plain arithmetic.
#pragma once

namespace runnel::kernels::cuda::turing {

DEVICE void mma_f16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_f16_k8(c, {a[0], a[1]}, b[0]);
    mma_f16_k8(c, {a[2], a[3]}, b[1]);
}

// The products of two numbers and two.
DEVICE float add_bf16_pair(uint32_t a, uint32_t b, float c) {
    c = fma_rn(bits_float(a << 16), bits_float(b << 16), c);
    return fma_rn(bits_float(a & 0xffff0000u), bits_float(b & 0xffff0000u), c);
}

// Lane 4g + t gets rows g and g + 8 of A from the lanes 4g + j, columns 2t and 2t + 1 of B from the lanes
// 8t + j and 8t + 4 + j.
DEVICE void mma_bf16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    const int row = lane_index() & ~3, column = (lane_index() & 3) * 8;
#ifdef __CUDACC__
#pragma unroll 1  // a quarter of the code, which kernels contain some dozen times
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

// To nearest even; every NaN becomes the instruction's.
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
