// The text of PTX as nvcc writes it, taken apart: entries with their instructions, registers and parameters,
// shared memory, tables. What an instruction means is not known here (operations.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::ptx {

// Text that cannot be read or is not supported, and what a running kernel does wrong.
class Error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Operand {
    enum class Kind {
        Register,   // `reg`
        Immediate,  // `bits`
        Name,       // a symbol, a label or a special register
        Address,    // [base + offset]: `reg`, or `name` where reg < 0
        List,       // {a, b} and a|b: `parts`
    };
    Kind kind = Kind::Immediate;
    int reg = -1;           // index into Entry::registers
    uint64_t bits = 0;      // integers sign-extended; floats as they are written: 0f3f800000
    bool is_float = false;  // written that way
    std::string name;
    int64_t offset = 0;
    std::vector<Operand> parts;
};

struct Instruction {
    int line = 0;          // of the file
    std::string spelling;  // "setp.eq.s32"
    int guard = -1;        // a predicate register, or -1
    bool negated = false;  // @!p
    std::vector<Operand> operands;
};

struct Register {
    std::string name;
    int bits;  // 1 (predicates), 16, 32, 64
};

struct Parameter {
    size_t offset, bytes;
};

struct Entry {
    std::string name;
    std::map<std::string, Parameter> parameters;
    size_t parameter_bytes = 0;
    int threads = 0;  // .maxntid; 0: not stated
    std::vector<Register> registers;
    std::vector<Instruction> instructions;
    std::map<std::string, size_t> labels;  // index of the instruction behind it
};

struct Shared {
    size_t offset, bytes;
};

struct Table {
    std::vector<std::byte> bytes;
};

// A file. Entries are read when they are asked for: a file may have megabytes of them.
class Module {
  public:
    // file: for messages. Throws Error.
    Module(std::string text, std::string file);

    const std::string &file() const { return file_; }
    int target() const { return target_; }  // 90: sm_90
    std::vector<std::string> entries() const;
    Entry entry(const std::string &name) const;  // throws Error
    // Static shared memory by name, from offset 0 on. The one extern array has all that the launch gives and
    // 0 bytes here; it begins behind the others.
    const std::map<std::string, Shared> &shared() const { return shared_; }
    const std::map<std::string, Table> &tables() const { return tables_; }

  private:
    struct Place {
        size_t begin;
        int line;
    };
    std::string text_, file_;
    int target_ = 0;
    std::map<std::string, Place> places_;  // of ".entry"
    std::map<std::string, Shared> shared_;
    std::map<std::string, Table> tables_;
};

}  // namespace runnel::ptx
