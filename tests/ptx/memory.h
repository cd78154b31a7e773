// Global memory of a kernel: the ranges given by the test. Every other address is out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/ptx/parse.h"

namespace runnel::ptx {

struct Range {
    std::string name;
    uint64_t begin;  // the address in kernels
    size_t bytes;
    std::byte *data;
    // Data: kernels may read and write it. Weights: the same, and reads are allowed before
    // griddepcontrol.wait. Constant: read only, also before the wait.
    enum class Kind { Data, Weights, Constant } kind = Kind::Data;
    // The accesses of this launch: per byte (empty until needed), and for weights as a whole.
    std::vector<uint8_t> marks = {};
    uint8_t all_marks = 0;
    std::vector<std::byte> own = {};  // a copy of weights, made by the first write: `data` points to it
};

enum class Access { Read, ReadNc, Write };

class GlobalMemory {
  public:
    void add(Range range);  // must not overlap another one; throws Error
    std::vector<Range> &ranges() { return ranges_; }

    // The bytes at an address. Throws Error for an access out of bounds or not aligned to its size, a write to
    // constant memory, and ReadNc and Write of the same byte in one launch; before the wait of a dependent
    // launch, for everything but reads of constants and weights.
    std::byte *at(uint64_t address, size_t bytes, Access access, bool before_wait);

    static constexpr uint8_t kWritten = 1, kReadNc = 2;

  private:
    Range &find(uint64_t address, size_t bytes);
    std::vector<Range> ranges_;  // sorted
    size_t last_ = 0;
};

}  // namespace runnel::ptx
