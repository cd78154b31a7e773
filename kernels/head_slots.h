// Which slots of a program consist of heads, so that a tensor split can cut them where it cuts attention.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/program.h"
#include "kernels/row_cut.h"

namespace runnel::kernels {

// A slot of `units` equal heads, of which each rank has a range.
struct HeadSlot {
    int64_t units;
    Cut ranges;
    bool operator==(const HeadSlot &) const = default;
};

// Slice i of the slot lies in head i, and there are no other heads.
bool one_slice_per_head(int64_t slot_width, const StridedSlices &slices, int64_t count, int64_t slice_width);

// Whether the devices divide the cells of a cache layer. cache_shares: CacheConfig::shares.
bool is_divided(const Program &program, size_t cache_layer, std::span<const int32_t> cache_shares);

// By slot: queries, keys, values and outputs of Attention whose cache layer is not divided, and slots that steps of one head at
// a time connect with them. nullopt: the slot is none of these, or two of them that are cut differently.
std::vector<std::optional<HeadSlot>> head_slots(const Program &program, std::span<const double> shares,
                                                std::span<const int32_t> cache_shares);

}  // namespace runnel::kernels
