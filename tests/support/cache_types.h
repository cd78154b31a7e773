// The types of the cache that tests loop over.
#pragma once

#include <span>

#include "kernels/cache_type.h"

namespace runnel::testing {

using kernels::CacheType;

// All types. GPUs have the ones after the first.
inline constexpr CacheType kCacheTypes[] = {
    CacheType::F32,  CacheType::F16,  CacheType::BF16, CacheType::Q8_0, CacheType::FP8,
    CacheType::Q5_1, CacheType::Q5_0, CacheType::Q4_1, CacheType::Q4_0, CacheType::IQ4_NL};
inline constexpr auto kGpuCacheTypes = std::span(kCacheTypes).subspan<1>();

}  // namespace runnel::testing
