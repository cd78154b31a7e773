// The part of <linux/landlock.h> that is used, up to version 6 of the interface: older headers lack some of it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace runnel::commands::landlock {

struct Ruleset {  // struct landlock_ruleset_attr
    uint64_t files = 0, network = 0, scoped = 0;
};
struct [[gnu::packed]] PathRule {  // struct landlock_path_beneath_attr
    uint64_t allowed;
    int32_t folder;
};

inline constexpr uint64_t kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadFolder = 1 << 3, kRemoveFile = 1 << 5,
                          kMakeFile = 1 << 8, kTruncate = 1 << 14;

// All rights on files that version `version` knows.
inline uint64_t all_rights(int version) {
    const int bits = version >= 5 ? 16 : version >= 3 ? 15 : version >= 2 ? 14 : 13;
    return (uint64_t{1} << bits) - 1;
}

// 0 if the kernel lacks Landlock or has it disabled.
inline int version() {
    const long found = syscall(444, nullptr, size_t{0}, 1u);
    return found > 0 ? static_cast<int>(found) : 0;
}
// Descriptor of a ruleset, or -1.
inline int create(const Ruleset &rules, int version) {
    const size_t size = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    return static_cast<int>(syscall(444, &rules, size, 0u));
}
inline bool add(int ruleset, const PathRule &rule) {
    return syscall(445, ruleset, 1, &rule, 0u) == 0;
}
inline bool restrict_self(int ruleset) {
    return syscall(446, ruleset, 0u) == 0;
}

}  // namespace runnel::commands::landlock
