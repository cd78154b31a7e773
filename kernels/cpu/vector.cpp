#include "kernels/cpu/vector.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

bool cpu_has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

bool cpu_has_avx512() {
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

const VectorKernels &vector_scalar() {
    return kVectorScalar;
}
const VectorKernels *vector_avx2() {
    return cpu_has_avx2() ? &kVectorAvx2 : nullptr;
}
const VectorKernels *vector_avx512() {
    return cpu_has_avx512() ? &kVectorAvx512 : nullptr;
}

const VectorKernels &vector_best() {
    if (cpu_has_avx512()) return kVectorAvx512;
    return cpu_has_avx2() ? kVectorAvx2 : kVectorScalar;
}

void rope_row(const RopeTable &table, int32_t position, float *cos, float *sin) {
    for (size_t j = 0; j < table.inv_freq.size(); ++j) {
        const double angle = position * table.inv_freq[j], magnitude = table.magnitude;
        cos[j] = static_cast<float>(std::cos(angle) * magnitude);
        sin[j] = static_cast<float>(std::sin(angle) * magnitude);
    }
}

double log_sum_exp(const float *x, int64_t n) {
    const VectorKernels &kernels = vector_best();
    const float largest = x[kernels.argmax(x, n)];
    if (!std::isfinite(largest)) return static_cast<double>(largest);
    constexpr int64_t kPiece = 512;
    float piece[kPiece];
    double sums[4] = {};  // independent chains: an addition takes four cycles
    for (int64_t from = 0; from < n; from += kPiece) {
        const int64_t count = std::min(kPiece, n - from);
        for (int64_t i = 0; i < count; ++i) piece[i] = x[from + i] - largest;
        kernels.exp(piece, count, piece);
        for (int64_t i = 0; i < count; ++i) sums[i % 4] += static_cast<double>(piece[i]);
    }
    return static_cast<double>(largest) + std::log((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace runnel::kernels::cpu
