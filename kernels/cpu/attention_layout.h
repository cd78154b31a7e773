// The layout of attention's scratch and partial results, shared by attention.cpp and the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cpu {
namespace {

constexpr int kMaxBlockRows = 8;  // the most rows per register block, of all instruction sets
constexpr int kSumLanes = 16;     // the 16 sums l of a row
constexpr int kPartialHead = 2;   // a row of partial results: m, l, o[head_dim_v]

// n rounded up to whole cache lines of floats.
constexpr size_t padded(int32_t n) {
    return (static_cast<size_t>(n) + 15) / 16 * 16;
}

}  // namespace
}  // namespace runnel::kernels::cpu
