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

constexpr uint64_t kBranch = 0x947, kLocalLoad = 0x983, kLocalStore = 0x387;
constexpr uint64_t kBarrier = 0xb1d;
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

// Index of the instruction that the branch at i jumps to.
int64_t branch_target(const MachineCode &code, size_t i) {
    const auto high = static_cast<int64_t>(code.words[i]) >> 34;
    const int64_t words4 =
        code.split_offsets ? high << 8 | static_cast<int64_t>(code.words[i] >> 16 & 0xffu) : high;
    return static_cast<int64_t>(i) + 1 + words4 / 4;
}

MachineCode read_code(const Elf &elf, const Elf64_Shdr &section) {
    MachineCode code;
    for (size_t i = 0; i < section.sh_size; i += kInstructionBytes) {
        code.words.push_back(elf.at<uint64_t>(section.sh_offset + i));
        code.controls.push_back(elf.at<uint64_t>(section.sh_offset + i + sizeof(uint64_t)));
    }
    // Kernels end in a branch to itself, which shows how branches are encoded.
    for (size_t i = code.words.size(); i-- > 0;)
        if (code.opcode(i) == kBranch) {
            code.split_offsets = branch_target(code, i) != static_cast<int64_t>(i);
            break;
        }
    return code;
}

void find_loop(const MachineCode &code, KernelCode &kernel) {
    int all_mma = 0;
    for (size_t i = 0; i < code.words.size(); ++i) all_mma += code.is_mma(i);
    if (all_mma == 0) return;
    for (size_t i = 0; i < code.words.size(); ++i) {
        const int64_t begin = code.loop_begin(i);
        if (begin < 0) continue;
        int mma = 0;
        for (size_t j = static_cast<size_t>(begin); j <= i; ++j) mma += code.is_mma(j);
        const int length = static_cast<int>(static_cast<int64_t>(i) - begin) + 1;
        if (10 * mma < 9 * all_mma || (kernel.loop_instructions > 0 && length >= kernel.loop_instructions))
            continue;
        kernel.loop_instructions = length;
        kernel.loop_mma = mma;
    }
}

KernelCode summary(const MachineCode &code) {
    KernelCode kernel;
    kernel.name = code.name;
    kernel.registers = code.registers;
    kernel.instructions = static_cast<int>(code.words.size());
    for (size_t i = 0; i < code.words.size(); ++i)
        kernel.local_accesses += code.opcode(i) == kLocalLoad || code.opcode(i) == kLocalStore;
    find_loop(code, kernel);
    return kernel;
}

}  // namespace

bool MachineCode::is_mma(size_t i) const {
    return is_integer_mma(i) || opcode(i) == kFloatMma;
}

bool MachineCode::is_integer_mma(size_t i) const {
    return opcode(i) == kIntegerMma;
}

bool MachineCode::is_barrier(size_t i) const {
    return opcode(i) == kBarrier;
}

int64_t MachineCode::loop_begin(size_t i) const {
    if (opcode(i) != kBranch) return -1;
    const int64_t target = branch_target(*this, i);
    return target <= static_cast<int64_t>(i) ? std::max<int64_t>(target, -1) : -1;
}

std::vector<MachineCode> read_machine_code(const std::filesystem::path &path) {
    const std::vector<char> bytes = read_file(path);
    if (!Elf::begins_at(bytes, 0)) throw std::runtime_error(path.string() + ": not an object file");
    const Elf object(bytes, 0);
    std::vector<MachineCode> kernels;
    const Elf64_Shdr *device = object.find(".nv_fatbin");
    if (!device) return kernels;
    for (size_t at = device->sh_offset; at + SELFMAG <= device->sh_offset + device->sh_size; at += 8) {
        if (!Elf::begins_at(bytes, at)) continue;
        const Elf cubin(bytes, at);
        if (cubin.header().e_machine != kCudaMachine) continue;
        const auto counts = registers(cubin);
        for (const Elf64_Shdr &section : cubin.sections()) {
            const std::string name = cubin.name(section);
            if (name.rfind(".text.", 0) != 0) continue;
            MachineCode code = read_code(cubin, section);
            code.arch = static_cast<int>(cubin.header().e_flags >> 8 & 0xffu);
            code.name = body_name(name.substr(6));
            const auto count = counts.find(name.substr(6));
            if (count != counts.end()) code.registers = count->second;
            kernels.push_back(std::move(code));
        }
    }
    return kernels;
}

std::vector<TableRow> read_object(const std::filesystem::path &path) {
    std::vector<TableRow> rows;
    for (const MachineCode &code : read_machine_code(path)) rows.push_back({code.arch, summary(code)});
    return rows;
}

std::vector<std::filesystem::path> device_objects(const std::filesystem::path &build) {
    std::vector<std::filesystem::path> paths;
    const std::filesystem::path folder = build / "obj/kernels/cuda";
    if (!std::filesystem::exists(folder)) return paths;
    for (const auto &entry : std::filesystem::recursive_directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (name.size() >= 7 && name.substr(name.size() - 7) == ".cuda.o") paths.push_back(entry.path());
    }
    return paths;
}

std::vector<TableRow> read_build(const std::filesystem::path &build) {
    std::vector<TableRow> rows;
    for (const std::filesystem::path &path : device_objects(build))
        for (TableRow &row : read_object(path)) rows.push_back(std::move(row));
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
