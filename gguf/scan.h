// Looks for damage in the data of a tensor: blocks whose values are no numbers, and pages that nobody wrote.
//
// Quantized weights have no checksum and few bits that can be wrong, but their scales are floats: of random
// bytes, every 32nd binary16 is NaN or infinite, and no quantizer writes one. (Of NVFP4's scales, more than
// half of all bytes are none that a quantizer writes.) A download that was cut off, or preallocated and never
// filled, leaves pages of zeros.
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
    uint64_t not_finite = 0;  // blocks with a scale (NVFP4: also a negative one), or of plain numbers a
                              // value, NaN or infinite
    std::optional<uint64_t> first_broken;  // the first of them, counted from the beginning of `data`
    uint64_t pages = 0, zero_pages = 0;    // whole pages of `data`; those that hold nothing but zeros
    uint64_t zero_tail = 0;                // of zero_pages: the last ones, without a gap

    // Of data that follow on these.
    void add(const DataScan &next);
};

// Reads all of `data`, whole blocks of `type`, once: at the speed of memory. Blocks of formats without
// scales (integers) are counted, and only their pages looked at.
DataScan scan(Type type, std::span<const std::byte> data);

}  // namespace runnel::gguf
