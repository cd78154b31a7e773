// An entry ready to run: steps with rows for registers, found by liveness so that a warp's registers stay in
// the cache (nvcc's text names thousands of registers that live for a few instructions).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/operations.h"
#include "tests/ptx/parse.h"

namespace runnel::ptx {

// Special registers, in the first rows of uint32_t.
enum class Special : Row { TidX, CtaidX, NtidX, NctaidX, Count };

struct Program {
    std::string file, name;
    std::vector<Step> steps;
    std::vector<std::string> spellings;  // by step
    size_t narrow_rows = 0, wide_rows = 0;
    std::vector<uint32_t> narrow_constants;  // rows
    std::vector<uint64_t> wide_constants;
    size_t parameter_bytes = 0, static_shared = 0;
    int threads = 0;            // that a block must have; 0: not stated
    bool has_wait = false;      // griddepcontrol.wait
    std::vector<Range> tables;  // of the module, which outlives the program
};

// Throws Error, which names file and line: an instruction that is not supported, operands that do not fit it.
Program compile(const Module &module, const Entry &entry);

}  // namespace runnel::ptx
