#include "tests/gpu/cubin.h"

#include <cxxabi.h>
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>

namespace runnel::tests {

std::string body_name(const std::string &mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void *)> text(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
    if (status != 0) return mangled;
    std::string name = text.get();
    const size_t begin = name.find("entry<"), end = name.find(">(");
    if (begin != std::string::npos && end != std::string::npos)
        name = name.substr(begin + 6, end - begin - 6);
    for (const std::string part : {"runnel::kernels::cuda::", "(anonymous namespace)::"})
        for (size_t at; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size());
    while (!name.empty() && name.back() == ' ') name.pop_back();
    return name;
}

namespace {

constexpr uint64_t kOpcode = 0xfff;
constexpr uint64_t kBranch = 0x947, kLocalLoad = 0x983, kLocalStore = 0x387;
constexpr uint64_t kIntegerMma = 0x237, kFloatMma = 0x23c;
constexpr size_t kInstructionBytes = 16;
constexpr uint8_t kRegisterCount = 0x2f;  // attribute of .nv.info: {symbol, registers}

constexpr uint16_t kCudaMachine = 190;

std::vector<char> read_file(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// An ELF file that begins at `base` of some bytes.
class Elf {
  public:
    Elf(const std::vector<char> &bytes, size_t base) : bytes_(bytes), base_(base) {
        header_ = at<Elf64_Ehdr>(0);
        for (size_t i = 0; i < header_.e_shnum; ++i)
            sections_.push_back(at<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr)));
        names_ = sections_.at(header_.e_shstrndx);
    }
    static bool begins_at(const std::vector<char> &bytes, size_t base) {
        return base + sizeof(Elf64_Ehdr) <= bytes.size() && std::memcmp(&bytes[base], ELFMAG, SELFMAG) == 0;
    }
    template <class T>
    T at(size_t offset) const {
        if (offset > bytes_.size() - base_ || bytes_.size() - base_ - offset < sizeof(T))
            throw std::runtime_error("an object file ends early");
        T value;
        std::memcpy(&value, bytes_.data() + base_ + offset, sizeof value);
        return value;
    }
    const Elf64_Ehdr &header() const { return header_; }
    const std::vector<Elf64_Shdr> &sections() const { return sections_; }
    std::string text(const Elf64_Shdr &strings, size_t offset) const {
        std::string s;
        for (size_t i = strings.sh_offset + offset; at<char>(i) != 0; ++i) s += at<char>(i);
        return s;
    }
    std::string name(const Elf64_Shdr &section) const { return text(names_, section.sh_name); }
    const Elf64_Shdr *find(const std::string &wanted) const {
        for (const Elf64_Shdr &s : sections_)
            if (name(s) == wanted) return &s;
        return nullptr;
    }

  private:
    const std::vector<char> &bytes_;
    size_t base_;
    Elf64_Ehdr header_;
    std::vector<Elf64_Shdr> sections_;
    Elf64_Shdr names_;
};

// Registers by the mangled name of the kernel.
std::map<std::string, int> registers(const Elf &elf) {
    std::map<std::string, int> all;
    const Elf64_Shdr *info = elf.find(".nv.info"), *symbols = elf.find(".symtab"),
                     *strings = elf.find(".strtab");
    if (!info || !symbols || !strings) return all;
    constexpr uint8_t kSized = 4;
    for (size_t i = 0; i + 4 <= info->sh_size;) {
        const size_t here = info->sh_offset + i;
        if (elf.at<uint8_t>(here) == kSized && elf.at<uint8_t>(here + 1) == kRegisterCount) {
            const auto symbol =
                elf.at<Elf64_Sym>(symbols->sh_offset + elf.at<uint32_t>(here + 4) * sizeof(Elf64_Sym));
            all[elf.text(*strings, symbol.st_name)] = elf.at<int32_t>(here + 8);
        }
        i += 4 + (elf.at<uint8_t>(here) == kSized ? elf.at<uint16_t>(here + 2) : 0u);
    }
    return all;
}

struct Code {
    std::vector<uint64_t> words;  // the first word of every instruction
    bool split_offsets = false;   // a branch's offset has its low byte elsewhere (sm_90 and later, nvcc 13)

    uint64_t opcode(size_t i) const { return words[i] & kOpcode; }
    bool is_mma(size_t i) const { return opcode(i) == kIntegerMma || opcode(i) == kFloatMma; }
    // Index of the instruction that the branch at i jumps to.
    int64_t target(size_t i) const {
        const auto high = static_cast<int64_t>(words[i]) >> 34;
        const int64_t words4 =
            split_offsets ? high << 8 | static_cast<int64_t>(words[i] >> 16 & 0xffu) : high;
        return static_cast<int64_t>(i) + 1 + words4 / 4;
    }
};

Code read_code(const Elf &elf, const Elf64_Shdr &section) {
    Code code;
    for (size_t i = 0; i < section.sh_size; i += kInstructionBytes)
        code.words.push_back(elf.at<uint64_t>(section.sh_offset + i));
    // Kernels end in a branch to itself, which shows how branches are encoded.
    for (size_t i = code.words.size(); i-- > 0;)
        if (code.opcode(i) == kBranch) {
            code.split_offsets = code.target(i) != static_cast<int64_t>(i);
            break;
        }
    return code;
}

void find_loop(const Code &code, KernelCode &kernel) {
    int all_mma = 0;
    for (size_t i = 0; i < code.words.size(); ++i) all_mma += code.is_mma(i);
    if (all_mma == 0) return;
    for (size_t i = 0; i < code.words.size(); ++i) {
        if (code.opcode(i) != kBranch) continue;
        const int64_t target = code.target(i);
        if (target < 0 || target > static_cast<int64_t>(i)) continue;
        int mma = 0;
        for (size_t j = static_cast<size_t>(target); j <= i; ++j) mma += code.is_mma(j);
        const int length = static_cast<int>(static_cast<int64_t>(i) - target) + 1;
        if (10 * mma < 9 * all_mma || (kernel.loop_instructions > 0 && length >= kernel.loop_instructions))
            continue;
        kernel.loop_instructions = length;
        kernel.loop_mma = mma;
    }
}

}  // namespace

static KernelCode read_kernel(const Elf &elf, const Elf64_Shdr &section, const std::string &mangled,
                              const std::map<std::string, int> &register_counts) {
    const Code code = read_code(elf, section);
    KernelCode kernel;
    kernel.name = body_name(mangled);
    const auto count = register_counts.find(mangled);
    if (count != register_counts.end()) kernel.registers = count->second;
    kernel.instructions = static_cast<int>(code.words.size());
    for (size_t i = 0; i < code.words.size(); ++i)
        kernel.local_accesses += code.opcode(i) == kLocalLoad || code.opcode(i) == kLocalStore;
    find_loop(code, kernel);
    return kernel;
}

std::vector<TableRow> read_object(const std::filesystem::path &path) {
    const std::vector<char> bytes = read_file(path);
    if (!Elf::begins_at(bytes, 0)) throw std::runtime_error(path.string() + ": not an object file");
    const Elf object(bytes, 0);
    std::vector<TableRow> rows;
    const Elf64_Shdr *device = object.find(".nv_fatbin");
    if (!device) return rows;
    for (size_t at = device->sh_offset; at + SELFMAG <= device->sh_offset + device->sh_size; at += 8) {
        if (!Elf::begins_at(bytes, at)) continue;
        const Elf cubin(bytes, at);
        if (cubin.header().e_machine != kCudaMachine) continue;
        const auto counts = registers(cubin);
        for (const Elf64_Shdr &section : cubin.sections()) {
            const std::string name = cubin.name(section);
            if (name.rfind(".text.", 0) != 0) continue;
            const int arch = static_cast<int>(cubin.header().e_flags >> 8 & 0xffu);
            rows.push_back({arch, read_kernel(cubin, section, name.substr(6), counts)});
        }
    }
    return rows;
}

std::vector<TableRow> read_build(const std::filesystem::path &build) {
    std::vector<TableRow> rows;
    const std::filesystem::path folder = build / "obj/kernels/cuda";
    if (!std::filesystem::exists(folder)) return rows;
    for (const auto &entry : std::filesystem::recursive_directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (name.size() < 7 || name.substr(name.size() - 7) != ".cuda.o") continue;
        for (TableRow &row : read_object(entry.path())) rows.push_back(std::move(row));
    }
    std::sort(rows.begin(), rows.end(), [](const TableRow &a, const TableRow &b) {
        return a.arch != b.arch ? a.arch < b.arch : a.code.name < b.code.name;
    });
    return rows;
}

std::string compiler_of(const std::filesystem::path &build) {
    std::ifstream in(build / "nvcc-version");
    std::string line;
    std::getline(in, line);
    return line;
}

std::string to_line(const TableRow &row) {
    const KernelCode &c = row.code;
    std::ostringstream line;
    line << "sm_" << row.arch << '\t' << c.registers << '\t' << c.instructions << '\t' << c.loop_instructions
         << '\t' << c.loop_mma << '\t' << c.name;
    return line.str();
}

TableRow from_line(const std::string &line) {
    std::istringstream in(line);
    TableRow row{};
    std::string arch;
    in >> arch >> row.code.registers >> row.code.instructions >> row.code.loop_instructions >>
        row.code.loop_mma >> std::ws;
    std::getline(in, row.code.name);
    if (!in || arch.rfind("sm_", 0) != 0) throw std::runtime_error("not a line of the kernel table: " + line);
    row.arch = std::atoi(arch.c_str() + 3);
    return row;
}

}  // namespace runnel::tests
