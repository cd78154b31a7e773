#include "kernels/cpu/system_memory.h"

#include <doctest/doctest.h>

#include <span>

#include "tests/support/temporary.h"

using namespace runnel::kernels::cpu;
using runnel::testing::TemporaryDirectory;

TEST_CASE("system memory: total and available memory are read from meminfo") {
    const SystemMemory memory = parse_meminfo("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\n");
    CHECK(memory.total == 1024000);
    CHECK(memory.available == 614400);
    CHECK(parse_meminfo("nothing").available == 0);
    CHECK(system_memory().available > 0);
    CHECK(system_memory().total >= system_memory().available);
}

TEST_CASE("system memory: the tightest control group counts, without its page cache") {
    const TemporaryDirectory directory;
    const auto put = [&](const std::string &name, std::string_view text) {
        std::filesystem::create_directories((directory / name).parent_path());
        runnel::testing::write_file(directory / name, std::as_bytes(std::span(text)));
    };
    put("membership", "1:name=x:/\n0::/a/b\n");
    put("mount/a/memory.max", "1000\n");
    put("mount/a/memory.current", "700\n");
    put("mount/a/memory.stat", "anon 1\ninactive_file 150\nactive_file 50\n");
    put("mount/a/b/memory.max", "max\n");
    const SystemMemory memory = limit_by_cgroups({5000, 3000}, directory / "membership", directory / "mount");
    CHECK(memory.total == 1000);
    CHECK(memory.available == 500);
    put("mount/a/memory.current", "9000\n");
    CHECK(limit_by_cgroups({5000, 3000}, directory / "membership", directory / "mount").available == 0);
    CHECK(limit_by_cgroups({5000, 3000}, directory / "absent", directory / "mount").available == 3000);
}
