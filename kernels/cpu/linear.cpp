// The code shared by all instruction sets, and the choice among them.
#include "kernels/cpu/linear.h"

#include "kernels/cpu/linear_isa.h"
#include "kernels/cpu/linear_packed.h"
#include "kernels/cpu/vector.h"

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

const LinearKernels *linear_avx2() {
    return cpu_has_avx2() ? &kLinearAvx2 : nullptr;
}

const LinearKernels *linear_avx512() {
    return cpu_has_avx512() ? &kLinearAvx512 : nullptr;
}

const LinearKernels *linear_amx() {
    return cpu_has_amx() ? &kLinearAmx : nullptr;
}

}  // namespace runnel::kernels::cpu
