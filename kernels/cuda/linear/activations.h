// Quantized activations in two forms for the tensor cores: integers for quantized weights, as binary16 numbers and as pairs of
// int8, and halves, which are binary16 numbers, for weights in F16 and BF16.
//
// Integers. Per group of 256 values of a row there is one scale s = max|x| / 2047 and an integer per value:
//   q = rint(x * (2047 / max|x|));  x ~ s q: 12 bits with the sign, exact in binary16.
// Products of such integers with the integers of quantized weights (up to 8 bits) sum exactly in the float32
// of an mma for any 32 columns: they stay below 2^23. The last group of a row may be shorter. A group whose
// maximum is below 2^-100 has s = 0 and zeros; a value that is not finite makes s NaN.
//
// One row (one token) in memory, for K values (a multiple of 32):
//   codes   [ceil(K / 64) * 64] binary16, zeros after K. Of each 32 columns, element 8 t + 4 h + i is column
//           16 h + 4 t + kColumnOrder[i] (t < 4, h < 2, i < 4). So lane 4 g + t loads its operands B of two
//           mma_f16_k16 at once, 16 bytes. kColumnOrder is the order in which fragments.h converts the four
//           codes of a word to operand A: bytes 0 and 2 before 1 and 3.
//   digits  of the first kDigitRows rows, for kernels that multiply bytes (weight_bytes.h): q = kDigit * h + l. Of each 32
//           columns 64 int8: all h, then all l; element 8 t + 4 h + i of both is column 16 h + 4 t + i, so that lane
//           4 g + t loads the operand B of one mma_s8_k32, or those of two mma_s8_k16, at once: 8 bytes.
//   scales  [ceil(K / 256)] float, and zeros up to a multiple of four
//   sums    [ceil(K / 256)][2][8] binary16: the sum of q of each group of 32, in two parts: the nearest
//           multiple of 32, and the rest. For weights that have a minimum per 32 columns.
//   sums16  [ceil(K / 256)][2][16] binary16: likewise the sum of q of each group of 16.
//
// Halves. Per row a power of two s with 2^14 <= max|x| / s < 2^15, and binary16 numbers h = rn(x / s), which
// have all 11 bits down to max|x| / 2^28. A row whose maximum is below 2^-100 has s = 0 and zeros; a value
// that is not finite makes s NaN.
//   halves  [ceil(K / 64) * 64] binary16, any K, zeros after K. The order is that of the codes, except that
//           element 8 t + 4 h + i is column 16 h + 4 t + i, which fits the operands A of F16 and BF16 tiles
//           (tiles.h).
//   half_scale  float
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cuda {

inline constexpr int kActivationGroup = 256;     // values per scale
inline constexpr int kActivationChunk = 64;      // values; rows are padded to it
inline constexpr int kActivationLargest = 2047;  // magnitude of an integer
inline constexpr int kColumnOrder[4] = {0, 2, 1, 3};
// 63, so that kDigit * h + l is one multiply-add: for a power of two the compiler shifts, in the pipe that is busiest.
inline constexpr int kDigit = 63;
inline constexpr int64_t kDigitRows = 64;
inline constexpr int kSumParts = 2 * 8, kSum16Parts = 2 * 16;  // numbers per group of 256

// Which of the two forms a buffer holds.
struct ActivationForms {
    bool integers = false, halves = false;

    constexpr bool any() const { return integers || halves; }
    constexpr ActivationForms operator|(ActivationForms other) const {
        return {integers || other.integers, halves || other.halves};
    }
};

// Rows in global memory, one per token, each 16-byte aligned. Strides are in elements of the array's type. A
// form that the buffer does not hold has null pointers.
struct Activations {
    uint16_t *codes;
    int8_t *digits;  // 2 codes_stride per row
    float *scales;
    uint16_t *sums, *sums16;
    int64_t codes_stride, scales_stride, sums_stride, sums16_stride;
    uint16_t *halves;
    float *half_scales;  // one per row
    int64_t halves_stride;
};

constexpr int64_t activation_groups(int64_t k) {
    return (k + kActivationGroup - 1) / kActivationGroup;
}
constexpr int64_t activation_scales_stride(int64_t k) {
    return (activation_groups(k) + 3) / 4 * 4;
}
// Stride of codes and of halves.
constexpr int64_t activation_halves_stride(int64_t k) {
    return (k + kActivationChunk - 1) / kActivationChunk * kActivationChunk;
}
// Of the digits of all rows that have them.
constexpr int64_t digit_bytes(int64_t k, int64_t tokens) {
    return 2 * activation_halves_stride(k) * (tokens < kDigitRows ? tokens : kDigitRows);
}
// activation_bytes(): bytes of the activations of `tokens` tokens. place_activations(): the arrays in a buffer of that
// size, which is 256-byte aligned.
constexpr int64_t activation_bytes(int64_t k, int64_t tokens, ActivationForms forms) {
    int64_t row = 0;
    if (forms.integers)
        row += 2 * activation_halves_stride(k) + 4 * activation_scales_stride(k) +
               2 * activation_groups(k) * (kSumParts + kSum16Parts);
    if (forms.halves) row += 2 * activation_halves_stride(k) + 4;
    return tokens * row + (forms.integers ? digit_bytes(k, tokens) : 0);
}
inline Activations place_activations(void *memory, int64_t k, int64_t tokens, ActivationForms forms) {
    Activations a{};
    auto *to = static_cast<std::byte *>(memory);
    const auto take = [&to]<class T>(T *&array, int64_t count) {
        array = reinterpret_cast<T *>(to);
        to += count * static_cast<int64_t>(sizeof(T));
    };
    if (forms.halves) {
        a.halves_stride = activation_halves_stride(k);
        take(a.halves, tokens * a.halves_stride);
    }
    if (forms.integers) {
        a.codes_stride = activation_halves_stride(k);
        a.scales_stride = activation_scales_stride(k);
        a.sums_stride = activation_groups(k) * kSumParts;
        a.sums16_stride = activation_groups(k) * kSum16Parts;
        take(a.codes, tokens * a.codes_stride);
        take(a.digits, digit_bytes(k, tokens));
        take(a.scales, tokens * a.scales_stride);
        take(a.sums, tokens * a.sums_stride);
        take(a.sums16, tokens * a.sums16_stride);
    }
    if (forms.halves) take(a.half_scales, tokens);
    return a;
}

}  // namespace runnel::kernels::cuda
