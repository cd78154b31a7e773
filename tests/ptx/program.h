// A compiled entry: steps whose registers are rows. Rows are shared by liveness so that a warp's registers fit
// the cache (nvcc's PTX names thousands of registers that live for a few instructions).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/operations.h"
#include "tests/ptx/parse.h"

namespace runnel::ptx {

// Special registers: the first narrow rows.
enum class Special : Row { TidX, CtaidX, NtidX, NctaidX, Count };

struct Program {
    std::string file, name;
    std::vector<Step> steps;
    std::vector<std::string> spellings;  // per step
    size_t narrow_rows = 0, wide_rows = 0;
    std::vector<uint32_t> narrow_constants;  // rows
    std::vector<uint64_t> wide_constants;
    size_t parameter_bytes = 0, static_shared = 0;
    int threads = 0;            // per block; 0: not stated
    bool has_wait = false;      // griddepcontrol.wait
    std::vector<Range> tables;  // in the module, which must outlive the program
};

// Throws Error with file and line for an unsupported instruction or operands that do not match it.
Program compile(const Module &module, const Entry &entry);

}  // namespace runnel::ptx
