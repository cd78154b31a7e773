#include "tests/ptx/replay.h"

#include <doctest/doctest.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "tests/gpu/cubin.h"
#include "tests/simt/memory.h"
#include "tests/support/listener.h"
#include "tests/support/random.h"

namespace runnel::ptx {

namespace {

std::string read_file(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

uintptr_t load_address() {
    uintptr_t base = 0;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *to) {
            *static_cast<uintptr_t *>(to) = info->dlpi_addr;
            return 1;  // the first object is the program itself
        },
        &base);
    return base;
}

template <class T>
T at(const std::string &bytes, size_t offset) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T))
        throw Error("the program's symbols end early");
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

// The kernels' entries in this program, from its symbol table, because their symbols are local.
std::map<const void *, std::string> entry_names() {
    const std::string self = read_file("/proc/self/exe");
    const auto header = at<Elf64_Ehdr>(self, 0);
    std::map<const void *, std::string> names;
    for (size_t i = 0; i < header.e_shnum; ++i) {
        const auto section = at<Elf64_Shdr>(self, header.e_shoff + i * sizeof(Elf64_Shdr));
        if (section.sh_type != SHT_SYMTAB) continue;
        const auto strings = at<Elf64_Shdr>(self, header.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
        for (size_t s = 0; s < section.sh_size; s += sizeof(Elf64_Sym)) {
            const auto symbol = at<Elf64_Sym>(self, section.sh_offset + s);
            if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
            const std::string name = self.c_str() + strings.sh_offset + symbol.st_name;
            if (name.find("5entryI") == std::string::npos) continue;
            names[reinterpret_cast<const void *>(load_address() + symbol.st_value)] = tests::body_name(name);
        }
    }
    return names;
}

bool both_nan(uint32_t a, uint32_t b) {
    const auto is_nan = [](uint32_t x) { return (x & 0x7fffffffu) > 0x7f800000u; };
    return is_nan(a) && is_nan(b);
}
bool same_half(uint32_t a, uint32_t b) {
    const auto is_nan = [](uint32_t x) { return (x & 0x7fffu) > 0x7c00u; };
    return a == b || (is_nan(a) && is_nan(b));
}

// The offset of the first difference, if there is one.
std::optional<size_t> difference(const std::byte *a, const std::byte *b, size_t bytes) {
    for (size_t i = 0; i < bytes;) {
        const size_t n = std::min<size_t>(4096, bytes - i);
        if (std::memcmp(a + i, b + i, n) == 0) {
            i += n;
            continue;
        }
        for (const size_t end = i + n; i < end; i += 4) {
            uint32_t x = 0, y = 0;
            const size_t word = std::min<size_t>(4, bytes - i);
            std::memcpy(&x, a + i, word), std::memcpy(&y, b + i, word);
            if (x != y && !both_nan(x, y) &&
                !(same_half(x & 0xffffu, y & 0xffffu) && same_half(x >> 16, y >> 16)))
                return i;
        }
    }
    return std::nullopt;
}

// The kernel that writes 64-bit keys in any order (select.cu; the next launch sorts them).
const char *const kUnordered = "CandidateChunk";

bool same_keys(const std::byte *a, const std::byte *b, size_t bytes) {
    if (bytes % sizeof(uint64_t) != 0) return false;
    const auto sorted = [&](const std::byte *from) {
        std::vector<uint64_t> keys(bytes / sizeof(uint64_t));
        std::memcpy(keys.data(), from, bytes);
        std::sort(keys.begin(), keys.end());
        return keys;
    };
    return sorted(a) == sorted(b);
}

std::string word_at(const std::byte *bytes, size_t size, size_t i) {
    uint32_t x = 0;
    std::memcpy(&x, bytes + i, std::min<size_t>(4, size - i));
    char text[64];
    std::snprintf(text, sizeof text, "%08x (%.9g)", x, static_cast<double>(std::bit_cast<float>(x)));
    return text;
}

}  // namespace

struct Replay::Text {
    const Module *module;
    std::string entry;
    std::optional<Program> program;

    const Program &compiled() {
        if (!program) program = compile(*module, module->entry(entry));
        return *program;
    }
};

Replay::Replay(const std::vector<std::filesystem::path> &paths) : names_(entry_names()) {
    for (const auto &path : paths) {
        if (!std::filesystem::is_directory(path)) {
            read(path);
            continue;
        }
        for (const auto &file : std::filesystem::recursive_directory_iterator(path))
            if (file.path().extension() == ".ptx") read(file.path());
    }
    if (texts_.empty()) throw Error("RUNNEL_PTX: no PTX entries in these paths");
    counts_.entries = texts_.size();
}

void Replay::read(const std::filesystem::path &file) {
    modules_.push_back(std::make_unique<Module>(read_file(file), file.string()));
    for (const std::string &name : modules_.back()->entries())
        texts_[tests::body_name(name)].reset(new Text{modules_.back().get(), name, {}});
}

Replay::~Replay() = default;

std::string Replay::file_of(const std::string &kernel) const {
    const auto text = texts_.find(kernel);
    return text == texts_.end() ? "" : text->second->module->file();
}

void Replay::compile_all() {
    for (const auto &[name, text] : texts_) text->compiled();
}

Replay::Text *Replay::find(const simt::LaunchCall &call) {
    const auto name = names_.find(call.kernel.entry);
    const std::string known = name == names_.end() ? call.kernel.name : name->second;
    if (simt::settings().is_turing()) {
        ++counts_.turing;
        return nullptr;
    }
    const auto text = texts_.find(known);
    ++(text == texts_.end() ? counts_.without_text : counts_.repeated)[known];
    return text == texts_.end() ? nullptr : text->second.get();
}

// Weights are not copied before the first write to them (by the kernel that makes tiles).
void Replay::copy_memory() {
    memory_ = GlobalMemory();
    copies_.clear();
    for (simt::Allocation *allocation : simt::memory().all())
        for (const simt::NamedRegion &region : allocation->regions()) {
            if (region.begin == region.end) continue;
            Range range{region.name, reinterpret_cast<uint64_t>(allocation->begin() + region.begin),
                        region.end - region.begin, allocation->begin() + region.begin};
            if (region.kind == kernels::cuda::Region::Weights) {
                range.kind = Range::Kind::Weights;
            } else {
                copies_.emplace_back(range.data, range.data + range.bytes);
                range.data = copies_.back().data();
            }
            memory_.add(std::move(range));
        }
}

void Replay::before(const simt::LaunchCall &call) {
    running_ = find(call);
    if (!running_) return;
    try {
        const Program &program = running_->compiled();
        copy_memory();
        for (const Range &table : program.tables) memory_.add(table);
        const uint64_t seed = testing::splitmix(simt::settings().seed ^ testing::splitmix(++launches_));
        Grid grid;
        grid.blocks = call.shape.blocks;
        grid.threads = call.kernel.threads;
        grid.shared = call.shape.shared.on(false);
        grid.parameters = call.params;
        // (PTX for less than sm_90 has no wait, and its launches are not dependent.)
        grid.dependent = call.shape.dependent && running_->module->target() >= 90;
        counts_.steps += run(program, grid, memory_,
                             {seed, seed >> 8 & 1u ? 1 : 3, (seed >> 9 & 1u) != 0, (seed >> 10 & 1u) != 0});
    } catch (const Error &e) {
        throw simt::Violation(std::string("PTX: ") + e.what());
    }
}

void Replay::after(const simt::LaunchCall &call) {
    if (!running_) return;
    const std::string entry = tests::body_name(std::exchange(running_, nullptr)->entry);
    for (const Range &range : memory_.ranges()) {
        const auto *device = reinterpret_cast<const std::byte *>(range.begin);
        if (range.data == device || range.kind == Range::Kind::Constant) continue;
        const auto i = difference(range.data, device, range.bytes);
        if (i && !(entry == kUnordered && same_keys(range.data, device, range.bytes)))
            throw simt::Violation(
                "PTX: " + entry + " (" + call.kernel.name + ", " + std::to_string(call.shape.blocks) +
                " blocks) leaves " + word_at(range.data, range.bytes, *i) + ", the emulator " +
                word_at(device, range.bytes, *i) + " at byte " + std::to_string(*i) + " of " + range.name);
    }
}

Replay *replay() {
    static const std::unique_ptr<Replay> instance = []() -> std::unique_ptr<Replay> {
        const char *paths = std::getenv("RUNNEL_PTX");
        if (!paths) return nullptr;
        std::istringstream list(paths);
        std::vector<std::filesystem::path> all;
        for (std::string path; std::getline(list, path, ':');) all.emplace_back(path);
        return std::make_unique<Replay>(all);
    }();
    return instance.get();
}

namespace {

// Observes launches from the first test case on, and reports the counts at the end.
class ReplayListener : public testing::Listener {
  public:
    using Listener::Listener;
    void test_run_start() override { simt::observe_launches(replay()); }
    void test_run_end(const doctest::TestRunStats &) override {
        if (!replay()) return;
        const Replay::Counts &counts = replay()->counts();
        uint64_t launches = 0, without = 0;
        for (const auto &[name, n] : counts.repeated) launches += n;
        for (const auto &[name, n] : counts.without_text) without += n;
        std::printf("[ptx] %llu launches of %zu of %llu entries repeated, %llu million warp steps\n",
                    static_cast<unsigned long long>(launches), counts.repeated.size(),
                    static_cast<unsigned long long>(counts.entries),
                    static_cast<unsigned long long>(counts.steps / 1000000));
        std::printf("[ptx] not repeated: %llu launches on sm_75, %llu of kernels without PTX\n",
                    static_cast<unsigned long long>(counts.turing), static_cast<unsigned long long>(without));
        for (const auto &[name, n] : counts.without_text) std::printf("[ptx]   %s\n", name.c_str());
    }
};
DOCTEST_REGISTER_LISTENER("ptx", 1, ReplayListener);

}  // namespace

}  // namespace runnel::ptx
