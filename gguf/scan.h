// Looks for damage in the data of a tensor: blocks whose values are not numbers, and pages never written.
//
// Quantized weights have no checksum and few invalid bit patterns, but their scales are floats: of random
// bytes, every 32nd binary16 is NaN or infinite, and no quantizer writes one. (More than half of all byte
// values are not valid NVFP4 scales.) A download that was truncated, or preallocated and never filled, leaves
// pages of zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "gguf/block.h"

namespace runnel::gguf {

inline constexpr size_t kScanPage = 4096;  // bytes

struct DataScan {
    uint64_t blocks = 0;
    uint64_t not_finite = 0;               // blocks with a scale, or a plain number, that is NaN or infinite
                                           // (NVFP4: also with a negative scale)
    std::optional<uint64_t> first_broken;  // the first of them, a block index in `data`
    uint64_t pages = 0, zero_pages = 0;    // whole pages of `data`; those that contain only zeros
    uint64_t zero_tail = 0;                // of zero_pages: those at the end, without a gap

    // Adds the result of the data that follow.
    void add(const DataScan &next);
};

// Reads all of `data`, whole blocks of `type`, once, at memory speed. Blocks of formats without scales
// (integers) are counted; only their pages are checked.
DataScan scan(Type type, std::span<const std::byte> data);

}  // namespace runnel::gguf
