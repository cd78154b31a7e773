// The functions of NCCL, NVIDIA's library that moves data between GPUs, found at run time. runnel is built without its
// headers and starts without the library.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace runnel::kernels::cuda::nccl {

// --- NCCL's C interface ------------------------------------------------------------------------------------
// Only what runnel uses; the names in the library are in library.cpp.

struct Communicator;  // ncclComm: one rank's end, on one device
using Result = int;   // ncclResult_t
inline constexpr Result kSuccess = 0, kInProgress = 7;
inline constexpr int kFloat32 = 7;  // of ncclDataType_t

struct Functions {
    Result (*get_version)(int *);
    const char *(*error_text)(Result);
    const char *(*last_error)(Communicator *);  // details of the last error, possibly empty
    // All ranks of one process: rank r uses the device devices[r].
    Result (*init_all)(Communicator **, int ranks, const int *devices);
    Result (*destroy)(Communicator *);
    Result (*abort)(Communicator *);  // ends the operations in progress, then as destroy()
    Result (*async_error)(Communicator *, Result *);
    // Calls between these two are one operation: its messages do not wait for each other. Groups are per thread.
    Result (*group_start)();
    Result (*group_end)();
    // In the order of the stream, a cudaStream_t. Messages between two ranks are matched in order; sizes must agree.
    Result (*send)(const void *from, size_t count, int type, int to_rank, Communicator *, void *stream);
    Result (*receive)(void *to, size_t count, int type, int from_rank, Communicator *, void *stream);
};

// --- loading -----------------------------------------------------------------------------------------------

struct Library {
    Functions functions;
    std::string name;  // "NCCL 2.28.9"
};

inline constexpr const char *kFile = "libnccl.so.2";

// Finds a function by its name in the library; null: it is not there.
using Find = std::function<void *(const char *)>;

// Checks the version (2.14 to 2.x) and that no function is missing. Throws BackendError{Failed} with one sentence.
Library load(const Find &find);

// Opens a shared library, as the dynamic linker finds it, until the process ends. Throws BackendError{Failed} with one
// sentence.
Find open(const char *file);

// The functions of the NCCL that serves the devices of runtime.h: open(kFile) in the program, what the test has set up in
// the emulator. Throws as open() does.
Find installed();

}  // namespace runnel::kernels::cuda::nccl
