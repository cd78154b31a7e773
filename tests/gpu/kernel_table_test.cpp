// The machine code that the build has just made, against tests/gpu/kernel-table.txt: no kernel touches local
// memory, none grows unnoticed, and every one has a row. After an intended change, run scripts/kernel-table.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/linear/tiles.h"
#include "tests/gpu/cubin.h"
#include "tests/support/skip.h"

using namespace runnel;
using tests::KernelCode;

namespace {

const char *const kTable = "tests/gpu/kernel-table.txt";

using Table = std::map<std::pair<int, std::string>, KernelCode>;

// Reads the table; its first line names the compiler.
Table read_table(std::string &compiler) {
    std::ifstream in(kTable);
    Table table;
    std::getline(in, compiler);
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        const tests::TableRow row = tests::from_line(line);
        table[{row.arch, row.code.name}] = row.code;
    }
    return table;
}

std::filesystem::path build() {
    const char *program = std::getenv("RUNNEL");
    return std::filesystem::path(program ? program : "build/runnel").parent_path();
}

bool grew(int now, int before) {
    return now > before + before / 20 + 4;
}

}  // namespace

TEST_CASE("cuda code: no local memory, and no kernel larger than the table says") {
    REQUIRE_MESSAGE(std::filesystem::exists(kTable), "tests run from the root of the sources");
    if (tests::compiler_of(build()).empty())
        return testing::skip("the build has no device code: there was no nvcc");
    std::string compiler;
    const Table table = read_table(compiler);
    const bool same_compiler = compiler == "# " + tests::compiler_of(build());
    if (!same_compiler) MESSAGE("the compiler is not the table's: only local memory is checked");
    const std::vector<tests::TableRow> rows = tests::read_build(build());
    if (rows.empty())
        return testing::skip("the machine code is compressed: build with INSPECT=--no-compress");
    for (const char *name :
         {"Embed", "Linear<(TileFormat)12, 1, false, true>", "AttentionDecode<128, false>"})
        CHECK(std::ranges::any_of(rows, [&](const tests::TableRow &row) { return row.code.name == name; }));
    std::set<int> listed;  // architectures
    for (const auto &[key, code] : table) listed.insert(key.first);
    int compared = 0;
    for (const tests::TableRow &row : rows) {
        CAPTURE(row.arch);
        CAPTURE(row.code.name);
        CHECK(row.code.instructions > 0);
        CHECK(row.code.registers > 0);
        CHECK(row.code.local_accesses == 0);
        if (!same_compiler || !listed.contains(row.arch)) continue;
        const auto known = table.find({row.arch, row.code.name});
        const bool has_row = known != table.end();  // if not: scripts/kernel-table
        CHECK(has_row);
        if (!has_row) continue;
        CHECK(row.code.registers <= known->second.registers);
        CHECK(!grew(row.code.instructions, known->second.instructions));
        CHECK(!grew(row.code.loop_instructions, known->second.loop_instructions));
        CHECK(row.code.loop_mma == known->second.loop_mma);
        ++compared;
    }
    if (same_compiler) CHECK(compared > 0);
}

TEST_CASE(
    "cuda code: decode stays within the instructions that an H200 can issue while it reads the weights") {
    if (!std::filesystem::exists(kTable)) {
        FAIL("tests run from the root of the sources");
        return;
    }
    std::string compiler;
    const Table table = read_table(compiler);
    using enum kernels::cuda::TileFormat;
    // Instructions per 512 weights and warp, for up to 4 tokens, that a multiprocessor can issue while it
    // reads the weights (16.5 bytes and four instructions per clock). Formats that need more are compared
    // with `needed` instead; PREDICTIONS.md says what that costs.
    struct Budget {
        kernels::cuda::TileFormat format;
        int instructions, needed;
    };
    constexpr Budget kBudgets[] = {
        {F16, 249, 0},     {BF16, 249, 0},  {Q4_0, 70, 0},     {Q4_1, 78, 0},    {Q5_0, 86, 0},
        {Q5_1, 93, 0},     {Q8_0, 132, 0},  {Q4_K, 70, 0},     {Q5_K, 86, 0},    {Q6_K, 102, 0},
        {IQ4_XS, 66, 0},   {Q2_K, 41, 0},   {Q3_K, 53, 0},     {IQ4_NL, 70, 0},  {MXFP4, 66, 78},
        {NVFP4, 70, 86},   {IQ1, 28, 78},   {IQ2_XXS, 34, 54}, {IQ2_XS, 38, 75}, {IQ2_S, 40, 75},
        {IQ3_XXS, 50, 58}, {IQ3_S, 53, 64},
    };
    // The loop multiplies a block of 4096 weights (of F16 and BF16 less, and it is not the innermost).
    constexpr int kSteps = 4096 / 512;
    for (const Budget &budget : kBudgets) {
        const std::string name =
            "Linear<(TileFormat)" + std::to_string(static_cast<int>(budget.format)) + ", 1, false, true>";
        CAPTURE(name);
        const auto row = table.find({90, name});
        REQUIRE(row != table.end());
        const int per_512 = (row->second.loop_instructions + kSteps - 1) / kSteps;
        CHECK(per_512 > 0);
        CHECK(per_512 <= (budget.needed > 0 ? budget.needed : budget.instructions));
        // A format that is within its budget must not be listed as an exception.
        if (budget.needed > 0) CHECK(per_512 > budget.instructions);
    }
}
