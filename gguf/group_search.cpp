#include "gguf/group_search.h"

#include "gguf/group_search_tables.h"

namespace runnel::gguf {

#if defined(__x86_64__)
// These check for every CPU feature that the compiler may use in *_avx2.cpp and *_avx512.cpp.
const GroupSearch *group_search_avx2() {
    const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    return runs ? &kGroupSearchAvx2 : nullptr;
}

const GroupSearch *group_search_avx512() {
    const bool runs = group_search_avx2() && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return runs ? &kGroupSearchAvx512 : nullptr;
}

#else
const GroupSearch *group_search_avx2() {
    return nullptr;
}

const GroupSearch *group_search_avx512() {
    return nullptr;
}
#endif

const GroupSearch &group_search_scalar() {
    return kGroupSearchScalar;
}

const GroupSearch &group_search() {
    static const GroupSearch &best = group_search_avx512() ? *group_search_avx512()
                                     : group_search_avx2() ? *group_search_avx2()
                                                           : group_search_scalar();
    return best;
}

}  // namespace runnel::gguf
