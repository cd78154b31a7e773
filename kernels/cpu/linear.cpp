// The code shared by all instruction sets, and the choice among them. Compiled for the baseline CPU: nothing
// here may use an instruction before a check that the CPU has it.
#include "kernels/cpu/linear.h"

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_packed.h"

namespace runnel::kernels::cpu {

using gguf::Type;

ActFormat act_format(Type weight) {
    const gguf::TypeTraits &t = gguf::traits(weight);
    if (t.block_size == 1) return ActFormat::F32;
    return t.block_size == 256 ? ActFormat::Q8x256 : ActFormat::Q8x32;
}

size_t packed_bytes(ActFormat format, int64_t cols, int32_t tokens) {
    const size_t records = static_cast<size_t>(record_count(cols)) * static_cast<size_t>(tokens);
    switch (format) {
        case ActFormat::F32:
            return records * sizeof(PackedF32);
        case ActFormat::Q8x32:
            return records * sizeof(PackedQ8x32);
        case ActFormat::Q8x256:
            break;
    }
    return records * sizeof(PackedQ8x256);
}

const LinearKernels &linear_scalar() {
    return kLinearScalar;
}

// __builtin_cpu_supports() covers the operating system's support too: libgcc asks xgetbv.
const LinearKernels *linear_avx2() {
    const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    return runs ? &kLinearAvx2 : nullptr;
}

const LinearKernels *linear_avx512() {
    const bool runs = linear_avx2() != nullptr && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return runs ? &kLinearAvx512 : nullptr;
}

}  // namespace runnel::kernels::cpu
