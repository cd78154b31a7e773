// Cells of the device's K/V cache on the host: reads and writes the layout of
// kernels/cuda/attention/cache_pages.h in the plainest way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

namespace runnel::tests {

double round_f16(double x);
double round_bf16(double x);

// One head of one token: codes are 16-bit patterns, or bytes or levels as they are stored, one per dimension.
struct CacheCell {
    kernels::CacheType type;
    std::vector<uint16_t>
        scales;  // binary16, per 32 dimensions: the scale, and the least value of types with one
    std::vector<int> codes;
};

// Values of about unit size.
CacheCell random_cell(testing::Random &random, kernels::CacheType type, int32_t dims);

// Dimension d as the matrix products read it.
double value_of(const CacheCell &cell, int32_t d);

// Cell `index` of page number `page`.
void write_cell(const CacheCell &cell, std::vector<unsigned char> &cache, size_t page, int32_t index);
CacheCell read_cell(kernels::CacheType type, int32_t dims, const std::vector<unsigned char> &cache,
                    size_t page, int32_t index);

// Requires the cell to hold the rounded values of these numbers (either neighbor for a tie).
void check_cell(const CacheCell &cell, const reference::Row &exact);

}  // namespace runnel::tests
