#include "kernels/cpu/vector.h"

#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

// (GCC 12 does not know AMX by name.)
bool cpu_has_amx() {
    static const bool has = [] {
        constexpr unsigned tile = 1u << 24, int8 = 1u << 25;         // CPUID 7: EDX
        constexpr unsigned tile_state = 1u << 17 | 1u << 18;         // XCR0
        constexpr long ask_for_state = 0x1023, kind_tile_data = 18;  // arch_prctl(2): ARCH_REQ_XCOMP_PERM
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!cpu_has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tile) == 0 ||
            (d & int8) == 0)
            return false;
        asm("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        return (a & tile_state) == tile_state && syscall(SYS_arch_prctl, ask_for_state, kind_tile_data) == 0;
    }();
    return has;
}
#else
bool cpu_has_avx2() {
    return false;
}

bool cpu_has_avx512() {
    return false;
}

bool cpu_has_amx() {
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
