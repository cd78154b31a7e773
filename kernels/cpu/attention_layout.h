// How attention lays out its scratch and its partial results: shared by attention.cpp and the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace runnel::kernels::cpu {
namespace {

constexpr int kMaxBlockRows = 8;  // rows that any instruction set keeps in registers together
constexpr int kSumLanes = 16;     // the 16 sums l of a row
constexpr int kPartialHead = 2;   // a row of partial results: m, l, o[head_dim_v]

// Rounded up to whole cache lines of floats.
constexpr size_t padded(int32_t n) {
    return (static_cast<size_t>(n) + 15) / 16 * 16;
}

}  // namespace
}  // namespace runnel::kernels::cpu
