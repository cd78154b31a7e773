// The names of cache types, as in options and reports.
#pragma once

#include <utility>

#include "kernels/backend.h"

namespace runnel::commands {

inline constexpr std::pair<const char *, kernels::CacheType> kCacheTypes[] = {
    {"f32", kernels::CacheType::F32},   {"f16", kernels::CacheType::F16},
    {"bf16", kernels::CacheType::BF16}, {"q8_0", kernels::CacheType::Q8_0},
    {"fp8", kernels::CacheType::FP8},   {"q5_1", kernels::CacheType::Q5_1},
    {"q5_0", kernels::CacheType::Q5_0}, {"q4_1", kernels::CacheType::Q4_1},
    {"q4_0", kernels::CacheType::Q4_0}, {"iq4_nl", kernels::CacheType::IQ4_NL}};

constexpr const char *name_of(kernels::CacheType type) {
    for (const auto &[name, known] : kCacheTypes)
        if (known == type) return name;
    return "";
}

}  // namespace runnel::commands
