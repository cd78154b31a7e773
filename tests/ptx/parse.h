// Parses PTX as nvcc writes it: entries with their instructions, registers and parameters, shared memory, and
// tables. The semantics of instructions are in operations.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::ptx {

// Invalid or unsupported PTX, or an error of a running kernel.
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
    uint64_t bits = 0;      // integers sign-extended; floats as bits: 0f3f800000
    bool is_float = false;  // an immediate written as 0f...
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
    std::map<std::string, size_t> labels;  // index of the next instruction
};

struct Shared {
    size_t offset, bytes;
};

struct Table {
    std::vector<std::byte> bytes;
};

// A file. entry() parses one entry at a time, because a file may have megabytes of them.
class Module {
  public:
    // file: for messages. Throws Error.
    Module(std::string text, std::string file);

    const std::string &file() const { return file_; }
    int target() const { return target_; }  // 90: sm_90
    std::vector<std::string> entries() const;
    Entry entry(const std::string &name) const;  // throws Error
    // Static shared memory by name, from offset 0 on. The one extern array stands for the dynamic shared memory
    // of the launch: it has 0 bytes here and follows the others.
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
