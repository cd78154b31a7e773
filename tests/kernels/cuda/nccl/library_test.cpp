#include "kernels/cuda/nccl/library.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <set>
#include <string>

#include "kernels/backend.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;

namespace {

int version = 0;
nccl::Result tell_version(int *to) {
    *to = version;
    return nccl::kSuccess;
}
void any_function() {}

// What load() throws of a library with this version, without one function.
std::string refusal_of(int of_version, const std::string &missing = "") {
    version = of_version;
    try {
        nccl::load([&](const std::string &name) -> void * {
            if (name == missing) return nullptr;
            if (name == "ncclGetVersion") return reinterpret_cast<void *>(tell_version);
            return reinterpret_cast<void *>(any_function);
        });
    } catch (const kernels::BackendError &error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("nccl library: versions from 2.14 on and before 3 are accepted if they have every function") {
    for (const int good : {21400, 21403, 22809, 23203, 29999}) CHECK(refusal_of(good).empty());
    CHECK(refusal_of(2803) == "NCCL 2.8.3 is too old: 2.14 or a later 2.x is needed");
    CHECK(refusal_of(21304) == "NCCL 2.13.4 is too old: 2.14 or a later 2.x is needed");
    CHECK(refusal_of(30000) == "NCCL 3.0.0 is unknown: 2.14 or a later 2.x is needed");
    std::set<std::string> names;
    nccl::load([&](const std::string &name) -> void * {
        names.insert(name);
        version = 22809;
        return name == "ncclGetVersion" ? reinterpret_cast<void *>(tell_version)
                                        : reinterpret_cast<void *>(any_function);
    });
    CHECK(names.size() == 11);
    for (const std::string &name : names)
        CHECK(refusal_of(22809, name) == "libnccl.so.2 lacks the function " + name);
}

TEST_CASE("nccl library: one that is absent is refused with its name") {
    CHECK_THROWS_WITH_AS(
        nccl::open("libnccl-absent.so.2"),
        "NCCL cannot be loaded: libnccl-absent.so.2: cannot open shared object file: No such "
        "file or directory",
        kernels::BackendError);
}

// NCCL itself needs no driver for this (scripts/setup --nccl downloads it).
TEST_CASE("nccl library: NCCL has every function, and says why it cannot start without a driver") {
    const char *const downloaded = "build/nccl/nvidia/nccl/lib/libnccl.so.2";
    if (!std::filesystem::exists(downloaded)) {
        testing::skip("there is no build/nccl (scripts/setup --nccl)");
        return;
    }
    const nccl::Library library = nccl::load(nccl::open(downloaded));
    CHECK(library.name.starts_with("NCCL 2."));
    nccl::Communicator *communicators[2] = {};
    const int gpus[] = {1000000, 1000001};
    const nccl::Result result = library.functions.init_all(communicators, 2, gpus);
    CHECK(result != nccl::kSuccess);
    CHECK(!std::string(library.functions.error_text(result)).empty());
    CHECK(library.functions.group_start() == nccl::kSuccess);
    CHECK(library.functions.group_end() == nccl::kSuccess);
}
