// Prints the table of scripts/kernel-table from the objects of a build. There is none, but a line that names
// them and status 1, as long as kernels of any architecture touch local memory.
#include <exception>
#include <iostream>

#include "tests/gpu/cubin.h"

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: kernel-table BUILD\n";
        return 2;
    }
    try {
        const auto rows = runnel::tests::read_build(argv[1]);
        bool spills = false;
        for (const auto &row : rows)
            if (row.code.local_accesses > 0) {
                std::cerr << "kernel-table: " << row.code.name << " on sm_" << row.arch
                          << " touches local memory " << row.code.local_accesses << " times\n";
                spills = true;
            }
        if (spills) return 1;
        std::cout << "# " << runnel::tests::compiler_of(argv[1]) << "\n"
                  << "# Machine code of every kernel; the loop is the smallest with nine tenths of the "
                     "kernel's mma.\n"
                  << "# arch\tregisters\tinstructions\tloop instructions\tmma in the loop\tkernel\n";
        for (const auto &row : rows) std::cout << to_line(row) << "\n";
    } catch (const std::exception &e) {
        std::cerr << "kernel-table: " << e.what() << "\n";
        return 1;
    }
}
