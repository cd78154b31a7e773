// The machine code that the build has just made, against tests/gpu/kernel-table.txt: no kernel touches local
// memory, none grows unnoticed, and every one has a row. After a change that is meant: scripts/kernel-table.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/cubin.h"

using namespace runnel;
using tests::KernelCode;

namespace {

const char *const kTable = "tests/gpu/kernel-table.txt";

using Table = std::map<std::pair<int, std::string>, KernelCode>;

// compiler: the first line.
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
    if (tests::compiler_of(build()).empty() || !std::filesystem::exists(kTable)) {
        MESSAGE("the build has no device code (no nvcc), or this is not the root of the sources: skipped");
        return;
    }
    std::string compiler;
    const Table table = read_table(compiler);
    const bool same_compiler = compiler == "# " + tests::compiler_of(build());
    if (!same_compiler) MESSAGE("another compiler than the table's: only local memory is looked at");
    const std::vector<tests::TableRow> rows = tests::read_build(build());
    if (rows.empty()) {
        MESSAGE("the machine code is compressed; build with INSPECT=--no-compress: skipped");
        return;
    }
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
