// The sums of linear_lookup.h, as the instruction sets share them.
#pragma once

#include <cstdint>

namespace runnel::kernels::cpu {

// Of 128 columns of a token: for each four of them the sum of those whose bit is set in an index of four bits. A sum of four is
// in -508 ... 508; stored is sum + 512 = low + 32 * high. Eight of them, the sum of a group of 32 columns, then fit in a byte
// each: 8 * 31 = 248; it is kLookupOffset too large. Arrays are [byte of a group][half of that byte][group][index].
struct alignas(64) LookupSums {
    uint8_t low[4][2][4][16], high[4][2][4][16];
    // By group, four times, as the lanes of its rows read them.
    int32_t minus_sum[4][4];  // of the group's activations
    float scale[4][4];
};
inline constexpr int32_t kLookupOffset = 8 * 512;
static_assert(sizeof(LookupSums) == 1152);

}  // namespace runnel::kernels::cpu
