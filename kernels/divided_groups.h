// Which cache groups several devices can divide, each with a share of the cells (CacheConfig::shares, --split context).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/program.h"

namespace runnel::kernels {

// By cache group of the program: how many of `ranks` devices hold its blocks if all groups are divided that can be: `ranks`, or
// 1 if a layer of the group has a window, an indexer or chosen cells, keys that stand for several cells, or no attention.
// All 1: nothing is divided.
std::vector<int32_t> divided_groups(const Program &program, int32_t ranks);

}  // namespace runnel::kernels
