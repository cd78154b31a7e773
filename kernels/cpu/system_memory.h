// How much memory this process may still use.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace runnel::kernels::cpu {

struct SystemMemory {
    size_t total = 0, available = 0;  // bytes; 0 when unknown
};

// MemTotal and MemAvailable of /proc/meminfo (which counts page cache that can be dropped as available),
// limited by the memory limits of the process's control groups.
SystemMemory system_memory();

// The steps of system_memory().
SystemMemory parse_meminfo(std::string_view text);
// Lowers `memory` to the limits of a version 2 control group and its ancestors; their page cache counts as
// available. membership: /proc/self/cgroup; mount: /sys/fs/cgroup.
SystemMemory limit_by_cgroups(SystemMemory memory, const std::filesystem::path &membership,
                              const std::filesystem::path &mount);

}  // namespace runnel::kernels::cpu
