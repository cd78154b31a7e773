// Prints the table of scripts/kernel-table from the objects of a build.
#include <exception>
#include <iostream>

#include "tests/gpu/cubin.h"

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: kernel-table BUILD\n";
        return 2;
    }
    try {
        std::cout << "# " << runnel::tests::compiler_of(argv[1]) << "\n"
                  << "# Machine code of every kernel; the loop is the smallest with nine tenths of the "
                     "kernel's mma.\n"
                  << "# arch\tregisters\tinstructions\tloop instructions\tmma in the loop\tkernel\n";
        for (const auto &row : runnel::tests::read_build(argv[1])) std::cout << to_line(row) << "\n";
    } catch (const std::exception &e) {
        std::cerr << "kernel-table: " << e.what() << "\n";
        return 1;
    }
}
