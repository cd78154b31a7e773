// Sample weights for quantizers: typical ones and difficult ones.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/random.h"

namespace runnel::testing {

// 256 * 256 normally distributed values of standard deviation 0.02 with, among them, blocks of zeros, of one
// constant of either sign, of one sign only, of a few large values, of tiny and of huge values.
inline std::vector<float> sample_weights() {
    constexpr int kBlock = 256, kBlocks = 256;
    std::vector<float> values(kBlock * kBlocks);
    Random random(2024);
    for (float &value : values) value = 0.02f * random.normal();
    const auto change = [&](int block, auto f) {
        for (int i = 0; i < kBlock; ++i) {
            float &value = values[static_cast<size_t>(block * kBlock + i)];
            value = f(value, i);
        }
    };
    change(3, [](float, int) { return 0.0f; });
    change(5, [](float, int) { return 0.75f; });
    change(7, [](float, int) { return -0.75f; });
    change(11, [](float x, int) { return x < 0 ? -x : x; });
    change(13, [](float x, int) { return x < 0 ? x : -x; });
    change(17, [](float x, int i) { return i % 50 == 7 ? 40 * x : x; });
    change(19, [](float x, int) { return 1e-7f * x; });
    change(23, [](float x, int) { return 1e4f * x; });
    change(29, [](float x, int i) { return i % 64 < 32 ? 0.0f : x; });
    change(31, [](float x, int i) { return i == 100 ? 1.0f : 1e-12f * x; });
    return values;
}

}  // namespace runnel::testing
