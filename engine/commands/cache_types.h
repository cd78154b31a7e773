// The names of cache types, as in options and reports.
#pragma once

#include <utility>

#include "kernels/backend.h"

namespace runnel::commands {

inline constexpr std::pair<const char *, kernels::CacheType> kCacheTypes[] = {
    {"f16", kernels::CacheType::F16},
    {"bf16", kernels::CacheType::BF16},
    {"q8_0", kernels::CacheType::Q8_0},
    {"q4_0", kernels::CacheType::Q4_0},
    {"fp8", kernels::CacheType::FP8}};

constexpr const char *name_of(kernels::CacheType type) {
    for (const auto &[name, known] : kCacheTypes)
        if (known == type) return name;
    return "";
}

}  // namespace runnel::commands
