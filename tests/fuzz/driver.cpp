// libFuzzer's entry point. The name of the program selects the target (build-fuzz/jinja is a link to the
// program).
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/targets.h"

namespace {

const runnel::fuzz::Target *chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***arguments) {
    const std::string_view path = **arguments;
    const std::string_view name = path.substr(path.find_last_of('/') + 1);
    for (const runnel::fuzz::Target &target : runnel::fuzz::kTargets)
        if (target.name == name) chosen = &target;
    if (chosen) return 0;
    std::fprintf(stderr, "%s: no fuzz target has that name\n", **arguments);
    std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    chosen->run({data, size});
    return 0;
}
