#include "kernels/cpu/system_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace runnel::kernels::cpu {
namespace {

std::string read_text(const std::filesystem::path &path) {
    const std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();  // (an iterator would throw if reading fails)
    return text.str();
}

std::optional<size_t> number(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == text.npos) return std::nullopt;
    size_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
    return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The number after `name` on the line that begins with `name`.
std::optional<size_t> field(std::string_view text, std::string_view name) {
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1))
        if (at == 0 || text[at - 1] == '\n') return number(text.substr(at + name.size()));
    return std::nullopt;
}

}  // namespace

SystemMemory parse_meminfo(std::string_view text) {
    const auto bytes = [&](std::string_view name) { return field(text, name).value_or(0) * 1024; };
    return {bytes("MemTotal:"), bytes("MemAvailable:")};
}

SystemMemory limit_by_cgroups(SystemMemory memory, const std::filesystem::path &membership,
                              const std::filesystem::path &mount) {
    const std::string groups = read_text(membership);
    const size_t begin = groups.find("0::/");
    if (begin == std::string::npos) return memory;
    const size_t end = groups.find('\n', begin);
    std::filesystem::path group = groups.substr(begin + 4, end == groups.npos ? end : end - begin - 4);
    for (;; group = group.parent_path()) {
        const std::filesystem::path directory = mount / group;
        if (const auto limit = number(read_text(directory / "memory.max"))) {
            const std::string stat = read_text(directory / "memory.stat");
            const size_t cache =
                field(stat, "inactive_file ").value_or(0) + field(stat, "active_file ").value_or(0);
            const size_t used = number(read_text(directory / "memory.current")).value_or(0);
            const size_t taken = used - std::min(used, cache);
            memory.total = std::min(memory.total, *limit);
            memory.available = std::min(memory.available, *limit - std::min(*limit, taken));
        }
        if (group.empty()) return memory;
    }
}

SystemMemory system_memory() {
    SystemMemory memory = parse_meminfo(read_text("/proc/meminfo"));
    struct sysinfo numbers {};
    if (memory.total == 0 && sysinfo(&numbers) == 0)  // no /proc: free memory without the page cache
        memory = {numbers.totalram * numbers.mem_unit,
                  (numbers.freeram + numbers.bufferram) * numbers.mem_unit};
    return limit_by_cgroups(memory, "/proc/self/cgroup", "/sys/fs/cgroup");
}

}  // namespace runnel::kernels::cpu
