#include "tests/gpu/model/code.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>
#include <stdexcept>

#include "kernels/cuda/linear/linear.h"
#include "tests/gpu/model/schedule.h"

namespace runnel::tests::model {

namespace {

constexpr uint64_t kOperation = 0x1ff;  // of an opcode; the bits above are the kinds of its operands

const std::map<uint64_t, Pipe> kPipeOf = [] {
    std::map<uint64_t, Pipe> pipes;
    const auto set = [&](Pipe pipe, std::initializer_list<uint64_t> operations) {
        for (const uint64_t operation : operations) pipes[operation] = pipe;
    };
    set(Pipe::Float, {0x20, 0x21, 0x23});  // FMUL FADD FFMA
    set(Pipe::Half, {0x30, 0x31});         // HADD2 HFMA2 (HMUL2)
    // MOV P2R VOTE SEL FSEL FSETP ISETP VIMNMX3 IADD3 LEA LOP3 IABS PRMT IMNMX SHF PLOP3 IADD VIADD F2FP I2FP
    // VIADDMNMX VIMNMX
    set(Pipe::Integer, {0x02, 0x03, 0x06, 0x07, 0x08, 0x0b, 0x0c, 0x0f, 0x10, 0x11, 0x12,
                        0x13, 0x16, 0x17, 0x19, 0x1c, 0x35, 0x36, 0x3e, 0x45, 0x46, 0x48});
    set(Pipe::Multiply, {0x24, 0x25, 0x26, 0x27});                // IMAD IDP
    set(Pipe::Tensor, {0x37, 0x3c});                              // IMMA HMMA
    set(Pipe::Slow, {0x102, 0x105, 0x106, 0x107, 0x108, 0x109});  // FCHK F2I I2F FRND MUFU POPC
    set(Pipe::Global, {0x181, 0x186, 0x1a8});                     // LDG STG ATOMG
    set(Pipe::Shared, {0x184, 0x188, 0x189});                     // LDS STS SHFL
    return pipes;
}();

struct Span {
    size_t begin = 0, end = 0;  // [begin, end)
    size_t size() const { return end - begin; }
    bool holds(const Span &other) const { return begin <= other.begin && other.end <= end; }
};

Counts count(const MachineCode &code, const Span &span) {
    Counts counts;
    for (size_t i = span.begin; i < span.end; ++i) {
        counts.all += 1;
        counts.pipe[static_cast<size_t>(pipe_of(code.opcode(i)))] += 1;
    }
    return counts;
}

int mma_in(const MachineCode &code, const Span &span) {
    int mma = 0;
    for (size_t i = span.begin; i < span.end; ++i) mma += code.is_mma(i);
    return mma;
}

std::vector<Span> loops_of(const MachineCode &code) {
    std::vector<Span> loops;
    for (size_t i = 0; i < code.words.size(); ++i)
        if (const int64_t begin = code.loop_begin(i); begin >= 0)
            loops.push_back({static_cast<size_t>(begin), i + 1});
    std::ranges::stable_sort(loops, {}, [](const Span &loop) { return loop.size(); });
    return loops;
}

[[noreturn]] void unexpected(const MachineCode &code, const std::string &what) {
    throw std::runtime_error(code.name + " on sm_" + std::to_string(code.arch) + ": " + what);
}

}  // namespace

Counts &Counts::add(const Counts &other, double times) {
    all += times * other.all;
    for (size_t i = 0; i < pipe.size(); ++i) pipe[i] += times * other.pipe[i];
    return *this;
}

// The kernels are compiled for at most two.
int resident_blocks(int registers) {
    constexpr int kRegisters = 65536, kStep = 8, kMost = 2;
    const int each = (registers + kStep - 1) / kStep * kStep * kernels::cuda::kLinearThreads;
    return std::clamp(kRegisters / each, 1, kMost);
}

Pipe pipe_of(uint64_t opcode) {
    const auto found = kPipeOf.find(opcode & kOperation);
    return found == kPipeOf.end() ? Pipe::Other : found->second;
}

// The loop over tiles is the smallest loop with mma and two barriers behind the inner loop (code that runs once, before the loop,
// may stand behind it, so that its jump back looks like a larger loop); in it is a loop over the matrices of a tile, and in
// that the inner loop, the smallest with mma. Between the two barriers is the part that writes.
LinearCode count_linear(const MachineCode &code) {
    std::vector<Span> loops;
    for (const Span &loop : loops_of(code))
        if (mma_in(code, loop) > 0) loops.push_back(loop);
    if (loops.size() < 3) unexpected(code, std::to_string(loops.size()) + " nested loops with mma");
    const Span inner = loops.front();
    std::vector<size_t> barriers;
    size_t outer = 1;
    for (; outer < loops.size(); ++outer) {
        barriers.clear();
        for (size_t i = inner.end; i < loops[outer].end; ++i)
            if (code.is_barrier(i)) barriers.push_back(i);
        if (barriers.size() >= 2) break;
    }
    if (barriers.size() != 2 || outer < 2)
        unexpected(code, std::to_string(barriers.size()) + " barriers per tile");
    const Span matrices = loops[outer - 1], tiles = loops[outer];
    if (mma_in(code, tiles) != mma_in(code, {0, code.words.size()})) unexpected(code, "mma in several loops");
    for (const Span &loop : loops)
        if (!loop.holds(inner)) unexpected(code, "two inner loops with mma");

    // Of binary16, a block is 16 mma of 16 columns, and up to two for minimums; the loop of F16 may have half of a block.
    constexpr int kBlockMma = 16;
    const int mma = mma_in(code, inner);
    bool bytes = false;
    for (size_t i = inner.begin; i < inner.end; ++i) bytes |= code.is_integer_mma(i);
    const double blocks = !bytes && mma < kBlockMma ? static_cast<double>(mma) / kBlockMma : 1;

    LinearCode parts;
    parts.registers = code.registers;
    for (size_t i = 0; i < kLatencies.size(); ++i)
        parts.clocks[i] = static_cast<int>(std::lround(
            loop_clocks(code, inner.begin, inner.end, 2 * resident_blocks(code.registers), {kLatencies[i]}) /
            blocks));
    // Up to the barrier behind the copy of the input, if there is one; what prepares an input comes behind it (cost.cpp: kOwnNorm).
    size_t start = 0;
    while (start < tiles.begin && !code.is_barrier(start)) ++start;
    parts.start = count(code, {0, start});
    parts.finish = count(code, {barriers[0] + 1, barriers[1]});
    parts.block.add(count(code, inner), 1 / blocks);
    parts.around = count(code, matrices).add(count(code, inner), -1);
    parts.tile = count(code, tiles).add(count(code, matrices), -1).add(parts.finish, -1);
    return parts;
}

const std::vector<std::string> &modeled_kernels() {
    static const std::vector<std::string> names = [] {
        using enum kernels::cuda::TileFormat;
        std::vector<std::string> all;
        for (const auto format : {F16, Q8_0, Q4_K, Q5_K, Q6_K})
            for (const char *rest : {", 1, false, true>", ", 1, false, false>", ", 1, true, true>",
                                     ", 1, true, false>", ", 2, false, true>", ", 2, false, false>"})
                all.push_back("Linear<(TileFormat)" + std::to_string(static_cast<int>(format)) + rest);
        return all;
    }();
    return names;
}

// --- the text ----------------------------------------------------------------------------------------------

namespace {

constexpr const char *kClocks = "clocks";
constexpr std::array<std::pair<const char *, Counts LinearCode::*>, 5> kParts = {
    {{"block", &LinearCode::block},
     {"around", &LinearCode::around},
     {"tile", &LinearCode::tile},
     {"finish", &LinearCode::finish},
     {"start", &LinearCode::start}}};

}  // namespace

std::string to_text(const CodeTable &table, const std::string &compiler) {
    std::ostringstream out;
    out << "# " << compiler << "\n"
        << "# Instructions of a warp in the matrix kernels, by part (tests/gpu/model/code.h): "
           "scripts/predict\n"
        << "# (clocks: of a block, with a latency of memory of 600, 900 and 1200 clocks: schedule.h)\n"
        << "# "
           "arch\tregisters\tpart\tall\tfloat\thalf\tinteger\tmultiply\ttensor\tslow\tglobal\tshared\tother\t"
           "kernel\n";
    for (const auto &[key, code] : table) {
        out << "sm_" << key.first << '\t' << code.registers << '\t' << kClocks;
        for (const int clocks : code.clocks) out << '\t' << clocks;
        out << '\t' << key.second << "\n";
        for (const auto &[name, part] : kParts) {
            out << "sm_" << key.first << '\t' << code.registers << '\t' << name << '\t' << (code.*part).all;
            for (const double n : (code.*part).pipe) out << '\t' << n;
            out << '\t' << key.second << "\n";
        }
    }
    return out.str();
}

CodeTable read_code_table(const std::string &text, std::string &compiler) {
    std::istringstream in(text);
    CodeTable table;
    std::getline(in, compiler);
    if (compiler.rfind("# ", 0) != 0) throw std::runtime_error("a table of instructions without a compiler");
    compiler.erase(0, 2);
    std::map<std::pair<int, std::string>, size_t> parts;
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        std::istringstream fields(line);
        std::string arch, part, name;
        LinearCode read;
        fields >> arch >> read.registers >> part;
        const auto known =
            std::ranges::find_if(kParts, [&](const auto &candidate) { return part == candidate.first; });
        Counts counts;
        if (part == kClocks) {
            for (int &clocks : read.clocks) fields >> clocks;
        } else {
            fields >> counts.all;
            for (double &n : counts.pipe) fields >> n;
        }
        std::getline(fields >> std::ws, name);
        if (!fields || arch.rfind("sm_", 0) != 0 || (part != kClocks && known == kParts.end()))
            throw std::runtime_error("not a line of the table of instructions: " + line);
        const std::pair key(std::atoi(arch.c_str() + 3), name);
        table[key].registers = read.registers;
        if (part == kClocks)
            table[key].clocks = read.clocks;
        else
            table[key].*known->second = counts;
        ++parts[key];
    }
    for (const auto &[key, count] : parts)
        if (count != kParts.size() + 1)
            throw std::runtime_error("the table of instructions lacks parts of " + key.second);
    return table;
}

}  // namespace runnel::tests::model
