// Global memory as a kernel sees it: ranges that the test hands in. Everything else is out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/ptx/parse.h"

namespace runnel::ptx {

struct Range {
    std::string name;
    uint64_t begin;  // the address that kernels know
    size_t bytes;
    std::byte *data;
    // What kernels do to it: read and write it; the same for weights, which they may also read before
    // griddepcontrol.wait; only read it, before the wait too.
    enum class Kind { Data, Weights, Constant } kind = Kind::Data;
    // What this launch did with it: per byte, empty until needed; of weights as a whole.
    std::vector<uint8_t> marks = {};
    uint8_t all_marks = 0;
    std::vector<std::byte> own = {};  // of weights, from the first write on: `data` points here
};

enum class Access { Read, ReadNc, Write };

class GlobalMemory {
  public:
    void add(Range range);  // apart from all others; throws Error
    std::vector<Range> &ranges() { return ranges_; }

    // The bytes behind an address. Throws Error: outside of every range, not aligned to its size, a write to
    // what is constant, a ReadNc of what the launch has written or a write to what it has read so; before
    // the wait of a dependent launch anything but reads of constants and weights.
    std::byte *at(uint64_t address, size_t bytes, Access access, bool before_wait);

    static constexpr uint8_t kWritten = 1, kReadNc = 2;

  private:
    Range &find(uint64_t address, size_t bytes);
    std::vector<Range> ranges_;  // sorted
    size_t last_ = 0;
};

}  // namespace runnel::ptx
