// What a matrix kernel (kernels/cuda/linear/linear_body.h) executes, by pipe, counted in its machine code.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/cubin.h"

namespace runnel::tests::model {

// The unit of a multiprocessor that executes an instruction. Every instruction also takes an issue slot.
enum class Pipe { Float, Half, Integer, Multiply, Tensor, Slow, Global, Shared, Other };
inline constexpr int kPipes = 9;

// Instructions of a warp.
struct Counts {
    double all = 0;
    std::array<double, kPipes> pipe{};

    Counts &add(const Counts &other, double times);
    bool operator==(const Counts &) const = default;
};

// Latencies of memory, in clocks, for which LinearCode::clocks is known.
inline constexpr std::array<int, 3> kLatencies = {600, 900, 1200};

// The parts of a matrix kernel.
struct LinearCode {
    int registers = 0;
    // Of a block of 16 rows x 256 columns with as many warps on a scheduler as fit, by kLatencies (schedule.h).
    std::array<int, 3> clocks{};
    Counts block;   // 16 rows x 256 columns of weights: the inner loop
    Counts around;  // once per warp and row tile of a matrix: what surrounds the inner loop
    Counts tile;    // once per warp and row tile, of both matrices of a gated pair
    Counts finish;  // the writing part between two barriers, all branches counted
    Counts start;   // once per warp and launch, in front of the loop over tiles
    bool operator==(const LinearCode &) const = default;
};

// Finds the parts by the kernel's loops and barriers. Throws std::runtime_error if it has another structure.
LinearCode count_linear(const MachineCode &code);

Pipe pipe_of(uint64_t opcode);

// Blocks of a kernel with so many registers (allocated in steps of 8) per multiprocessor.
int resident_blocks(int registers);

// By architecture (90: sm_90) and kernel.
using CodeTable = std::map<std::pair<int, std::string>, LinearCode>;

// tests/gpu/model/instructions.txt, whose first line names the compiler.
std::string to_text(const CodeTable &table, const std::string &compiler);
CodeTable read_code_table(const std::string &text, std::string &compiler);  // throws std::runtime_error

// The kernels that the model knows: "Linear<(TileFormat)12, 1, false>".
const std::vector<std::string> &modeled_kernels();

}  // namespace runnel::tests::model
