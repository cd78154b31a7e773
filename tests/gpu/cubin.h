// What the device compiler made of a kernel, read from the machine code itself (an ELF file for every
// architecture, inside the object).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace runnel::tests {

struct KernelCode {
    std::string name;  // "AttentionDecode<F16, 128>"
    int registers = 0;
    int instructions = 0;
    int local_accesses = 0;     // loads and stores of local memory: spills, or arrays that are not registers
    int loop_instructions = 0;  // of the smallest loop with nine tenths of all mma; 0: there is none
    int loop_mma = 0;
};

struct TableRow {
    int arch;  // 90: sm_90
    KernelCode code;
};

// The instructions of a kernel: the first word of each, and the second, which has how it is scheduled (model/schedule.h).
struct MachineCode {
    int arch = 0;
    std::string name;
    int registers = 0;
    std::vector<uint64_t> words, controls;
    bool split_offsets = false;  // a branch's offset has its low byte elsewhere (sm_90 and later, nvcc 13)

    uint64_t opcode(size_t i) const { return words[i] & 0xfffu; }
    bool is_mma(size_t i) const;
    bool is_integer_mma(size_t i) const;
    bool is_barrier(size_t i) const;
    // For a branch backwards: the index of the instruction that it jumps to; else -1.
    int64_t loop_begin(size_t i) const;
};

// All kernels in the device code that nvcc --no-compress has put into an object file, for every architecture.
std::vector<MachineCode> read_machine_code(const std::filesystem::path &path);

// All kernels in the device code that nvcc --no-compress has put into an object file, for every architecture.
// Instructions are 16 bytes, the low 12 bits of the first word their opcode (seen in nvcc 13.0's output).
// Throws std::runtime_error if the file is damaged.
std::vector<TableRow> read_object(const std::filesystem::path &path);

// The object files with device code of a build folder.
std::vector<std::filesystem::path> device_objects(const std::filesystem::path &build);

// The kernels of a build folder, sorted; none if it has no device code.
std::vector<TableRow> read_build(const std::filesystem::path &build);

// The compiler of a build's device code, in one line; empty if there is no device code.
std::string compiler_of(const std::filesystem::path &build);

// The kernel's body, "Body", from its entry's name "...entry<...::Body>(...)" as nvcc or g++ mangles it.
std::string body_name(const std::string &mangled);

// A line of tests/gpu/kernel-table.txt.
std::string to_line(const TableRow &row);
TableRow from_line(const std::string &line);  // throws std::runtime_error

}  // namespace runnel::tests
