#include "kernels/cuda/nccl/library.h"

#include <dlfcn.h>

#include "kernels/backend.h"

namespace runnel::kernels::cuda::nccl {
namespace {

// The first version with all functions, and the next major one, whose functions may differ. (Before 2.9, a version was
// major * 1000 + minor * 100 + patch, which is below 21400, too.)
constexpr int kOldest = 21400, kNextMajor = 30000;

[[noreturn]] void refuse(const std::string &why) {
    throw BackendError(BackendError::Kind::Failed, why);
}

std::string version_text(int version) {
    const int scale = version < 10000 ? 1000 : 10000;
    return std::to_string(version / scale) + "." + std::to_string(version % scale / 100) + "." +
           std::to_string(version % 100);
}

template <class Function>
void find_function(const Find &find, const char *name, Function &function) {
    void *const found = find(name);
    if (found == nullptr) refuse(std::string(kFile) + " lacks the function " + name);
    function = reinterpret_cast<Function>(found);
}

}  // namespace

Library load(const Find &find) {
    Functions f{};
    find_function(find, "ncclGetVersion", f.get_version);
    int version = 0;
    if (f.get_version(&version) != kSuccess) refuse(std::string(kFile) + " does not tell its version");
    const std::string name = "NCCL " + version_text(version);
    if (version < kOldest) refuse(name + " is too old: 2.14 or a later 2.x is needed");
    if (version >= kNextMajor) refuse(name + " is unknown: 2.14 or a later 2.x is needed");
    find_function(find, "ncclGetErrorString", f.error_text);
    find_function(find, "ncclGetLastError", f.last_error);
    find_function(find, "ncclCommInitAll", f.init_all);
    find_function(find, "ncclCommDestroy", f.destroy);
    find_function(find, "ncclCommAbort", f.abort);
    find_function(find, "ncclCommGetAsyncError", f.async_error);
    find_function(find, "ncclGroupStart", f.group_start);
    find_function(find, "ncclGroupEnd", f.group_end);
    find_function(find, "ncclSend", f.send);
    find_function(find, "ncclRecv", f.receive);
    return {f, name};
}

Find open(const char *file) {
    void *const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char *const why = dlerror();
        refuse("NCCL cannot be loaded: " + std::string(why ? why : file));
    }
    return [library](const char *name) { return dlsym(library, name); };
}

}  // namespace runnel::kernels::cuda::nccl
