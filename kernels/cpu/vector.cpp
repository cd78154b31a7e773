#include "kernels/cpu/vector.h"

#include <cmath>

#include "kernels/cpu/vector_tables.h"

namespace runnel::kernels::cpu {

// Compiled for the baseline CPU: nothing here may use an instruction before a check that the CPU has it.
// __builtin_cpu_supports() covers the operating system's support too: libgcc checks xgetbv.
#if defined(__x86_64__)
bool cpu_has_avx2() {
    return kVectorAvx2.name != nullptr && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

bool cpu_has_avx512() {
    return kVectorAvx512.name != nullptr && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#else
bool cpu_has_avx2() {
    return false;
}

bool cpu_has_avx512() {
    return false;
}
#endif

const VectorKernels &vector_scalar() {
    return kVectorScalar;
}
const VectorKernels *vector_avx2() {
    return cpu_has_avx2() ? &kVectorAvx2 : nullptr;
}
const VectorKernels *vector_avx512() {
    return cpu_has_avx512() ? &kVectorAvx512 : nullptr;
}

void rope_row(const RopeTable &table, int32_t position, float *cos, float *sin) {
    for (size_t j = 0; j < table.inv_freq.size(); ++j) {
        const double angle = position * table.inv_freq[j], magnitude = table.magnitude;
        cos[j] = static_cast<float>(std::cos(angle) * magnitude);
        sin[j] = static_cast<float>(std::sin(angle) * magnitude);
    }
}

}  // namespace runnel::kernels::cpu
