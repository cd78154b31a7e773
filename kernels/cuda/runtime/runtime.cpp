// Implements runtime.h with the CUDA runtime. Compiled only with the CUDA toolkit.
#include "kernels/cuda/runtime/runtime.h"

#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/nccl/library.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/runtime/devices.h"
#include "kernels/cuda/runtime/switches.h"

namespace runnel::kernels::cuda {

namespace {

// Advice for an error that persists for every run of this process; empty for others.
const char *advice(cudaError_t error) {
    switch (error) {
        case cudaErrorECCUncorrectable:
        case cudaErrorNvlinkUncorrectable:
            return "the GPU's memory has failed: restart the machine";
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchFailure:
        case cudaErrorLaunchTimeout:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorUnknown:
        case cudaErrorDeviceUninitialized:
        case cudaErrorExternalDevice:
            return "the GPU was lost while it was working (dmesg shows an Xid error): run the command "
                   "again; if that fails, runnel doctor finds the cause, and --device cpu avoids the GPU";
        case cudaErrorDevicesUnavailable:
            return "another process uses the GPU exclusively";
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction:
            return "this runnel has no code for this GPU: build it with CUDA_ARCHS for it, or use --device "
                   "cpu";
        case cudaErrorUnsupportedPtxVersion:
        case cudaErrorInvalidPtx:
        case cudaErrorJitCompilerNotFound:
        case cudaErrorJitCompilationDisabled:
            return "this runnel has no machine code for this GPU, and the driver cannot compile it: install "
                   "a "
                   "current NVIDIA driver, build with CUDA_ARCHS for this GPU, or use --device cpu";
        case cudaErrorMemoryAllocation:
            return "choose a smaller context with -c, or --device cpu";
        default:
            return "";
    }
}

[[noreturn]] void fail(cudaError_t error, const std::string &what) {
    cudaGetLastError();  // clears an error that is not fatal
    const auto kind =
        error == cudaErrorMemoryAllocation ? BackendError::Kind::OutOfMemory : BackendError::Kind::Failed;
    const std::string more = advice(error);
    throw BackendError(
        kind, "CUDA: " + what + ": " + cudaGetErrorString(error) + (more.empty() ? "" : " (" + more + ")"));
}

void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) fail(error, what);
}

int attribute(cudaDeviceAttr name, int device) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, name, device), "reading a device's properties");
    return value;
}

int current_device() {
    int device = 0;
    check(cudaGetDevice(&device), "querying the current device");
    return device;
}

bool on_turing(int device) {
    return attribute(cudaDevAttrComputeCapabilityMajor, device) < 8;
}

size_t shared_per_block(int device) {
    return static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
}

// Of the device's memory, which transfers two words of the bus's width per clock.
double peak_bandwidth(int device) {
    const double clock = 1e3 * attribute(cudaDevAttrMemoryClockRate, device);  // given in kHz
    const double bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
    return 2 * clock * bits / 8;
}

Devices none(Absence absence, const std::string &why) {
    return {true, {}, why, absence};
}

// The reason why cudaGetDeviceCount() found nothing.
Devices none(cudaError_t error) {
    if (error == cudaErrorInsufficientDriver) {
        int driver = 0;
        if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
            return none(Absence::NoDriver, "no NVIDIA driver was found");
        return none(Absence::DriverTooOld, "the NVIDIA driver is too old for this runnel: it supports CUDA " +
                                               std::to_string(driver / 1000) + "." +
                                               std::to_string(driver % 1000 / 10) + ", but runnel needs " +
                                               std::to_string(CUDART_VERSION / 1000) + ".0 or later");
    }
    if (error == cudaErrorNoDevice || error == cudaSuccess)
        return none(Absence::NoDevice, "the NVIDIA driver reports no device");
    return none(Absence::DriverFailed, std::string("the NVIDIA driver failed: ") + cudaGetErrorString(error));
}

DeviceInfo describe(int device) {
    try {
        const DeviceProperties p = properties(device);
        return {p.name + " (sm_" + std::to_string(p.major) + std::to_string(p.minor) + ", " +
                    std::to_string(p.multiprocessors) + " multiprocessors)",
                "cuda", p.memory_total, 0, p.bandwidth};
    } catch (const BackendError &e) {  // the other devices may work
        return {e.what(), "cuda", 0, 0};
    }
}

}  // namespace

// --- devices ---------------------------------------------------------------------------------------------

Devices find_devices() noexcept {
    Devices devices;
    devices.compiled_in = true;
    try {
        int count = 0;
        const cudaError_t error = cudaGetDeviceCount(&count);
        if (error != cudaSuccess || count == 0) {
            cudaGetLastError();
            return none(error);
        }
        for (int i = 0; i < count; ++i) devices.found.push_back(describe(i));
    } catch (const std::exception &e) {
        return none(Absence::DriverFailed, e.what());
    }
    return devices;
}

DeviceProperties properties(int device) {
    cudaDeviceProp p;
    check(cudaGetDeviceProperties(&p, device), "reading a device's properties");
    return {p.name,
            p.major,
            p.minor,
            p.multiProcessorCount,
            p.totalGlobalMem,
            shared_per_block(device),
            p.sharedMemPerMultiprocessor,
            static_cast<size_t>(p.l2CacheSize),
            peak_bandwidth(device)};
}

std::string compile_note(int device) {
    return compile_note(compiled_architectures(), attribute(cudaDevAttrComputeCapabilityMajor, device),
                        attribute(cudaDevAttrComputeCapabilityMinor, device));
}

size_t free_memory(int device) {
    use_device(device);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "querying the free memory");
    return free;
}

void use_device(int device) {
    check(cudaSetDevice(device), "selecting the device");
}

// Copies a pattern from one device to the other; false if it arrives damaged.
static bool copy_arrives(int device, int from) {
    std::vector<uint32_t> sent(size_t{1} << 18), arrived(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint32_t>(i) * 2654435761u + 1;
    const size_t bytes = sent.size() * sizeof(uint32_t);
    const char *const what = "checking copies between GPUs";
    use_device(from);
    const DeviceMemory source(bytes, what);
    check(cudaMemcpy(source.data(), sent.data(), bytes, cudaMemcpyHostToDevice), what);
    use_device(device);
    const DeviceMemory target(bytes, what);
    check(cudaMemset(target.data(), 0, bytes), what);
    check(cudaMemcpyPeer(target.data(), device, source.data(), from, bytes), what);
    check(cudaMemcpy(arrived.data(), target.data(), bytes, cudaMemcpyDeviceToHost), what);
    return sent == arrived;
}

bool can_copy_directly(int device, int from) {
    if (device == from) return true;
    static std::mutex lock;
    static std::map<std::pair<int, int>, bool> known;
    const std::lock_guard hold(lock);
    if (const auto found = known.find({device, from}); found != known.end()) return found->second;
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, device, from), "querying copies between GPUs");
    bool works = false;
    if (possible != 0) {
        use_device(device);
        const cudaError_t error = cudaDeviceEnablePeerAccess(from, 0);
        works = error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
        if (error != cudaSuccess) cudaGetLastError();  // clears it
        if (works && !copy_arrives(device, from)) {
            works = false;
            use_device(device);
            cudaDeviceDisablePeerAccess(from);
        }
    }
    return known[{device, from}] = works;
}

// --- memory ----------------------------------------------------------------------------------------------

DeviceMemory::DeviceMemory(size_t bytes, const char *name) : size_(bytes) {
    void *p = nullptr;
    const cudaError_t error = cudaMalloc(&p, bytes);
    if (error != cudaSuccess) fail(error, "allocating " + std::to_string(bytes >> 20) + " MiB for " + name);
    bytes_.reset(p);
}

void DeviceMemory::Free::operator()(void *p) const noexcept {
    cudaFree(p);
}

PinnedMemory::PinnedMemory(size_t bytes) : size_(bytes) {
    void *p = nullptr;
    const cudaError_t error = cudaHostAlloc(&p, bytes, cudaHostAllocDefault);
    if (error != cudaSuccess) fail(error, "pinning " + std::to_string(bytes >> 20) + " MiB of host memory");
    bytes_.reset(p);
}

void PinnedMemory::Free::operator()(void *p) const noexcept {
    cudaFreeHost(p);
}

void name_region(const void *, size_t, const char *, Region) {}

// --- streams ---------------------------------------------------------------------------------------------

struct Event::Implementation {
    cudaEvent_t event;
};

Event::Event() : implementation_(new Implementation{}) {
    check(cudaEventCreate(&implementation_->event), "creating an event");
}

void Event::Delete::operator()(Implementation *p) const noexcept {
    if (p->event) cudaEventDestroy(p->event);
    delete p;
}

bool Event::done() const {
    const cudaError_t state = cudaEventQuery(implementation_->event);
    if (state == cudaErrorNotReady) return false;
    check(state, "running kernels");
    return true;
}

void Event::wait() const {
    check(cudaEventSynchronize(implementation_->event), "running kernels");
}

bool Event::wait(std::chrono::microseconds most) const {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!done()) {
        if (std::chrono::steady_clock::now() >= end) return false;
        std::this_thread::yield();
    }
    return true;
}

float Event::milliseconds(const Event &from, const Event &to) {
    float time = 0;
    check(cudaEventElapsedTime(&time, from.get().event, to.get().event), "measuring a time");
    return time;
}

struct Graph::Implementation {
    cudaGraphExec_t graph;
    int64_t kernels;  // nodes of that kind
};

void Graph::Delete::operator()(Implementation *p) const noexcept {
    if (p->graph) cudaGraphExecDestroy(p->graph);
    delete p;
}

int64_t Graph::kernels() const {
    return get().kernels;
}

static int64_t kernel_nodes(cudaGraph_t graph) {
    size_t count = 0;
    check(cudaGraphGetNodes(graph, nullptr, &count), "counting the kernels of a graph");
    std::vector<cudaGraphNode_t> nodes(count);
    check(cudaGraphGetNodes(graph, nodes.data(), &count), "counting the kernels of a graph");
    int64_t kernels = 0;
    for (const cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type{};
        check(cudaGraphNodeGetType(node, &type), "counting the kernels of a graph");
        kernels += type == cudaGraphNodeTypeKernel;
    }
    return kernels;
}

struct Stream::Implementation {
    cudaStream_t stream;
    bool turing = false;  // the stream's device is an sm_75
    int64_t launched = 0;
    bool capturing = false;
};

Stream::Stream() : implementation_(new Implementation{}) {
    get().turing = on_turing(current_device());
    check(cudaStreamCreateWithFlags(&implementation_->stream, cudaStreamNonBlocking), "creating a stream");
}

void Stream::Delete::operator()(Implementation *p) const noexcept {
    if (p->stream) {
        cudaStreamSynchronize(p->stream);  // cudaStreamDestroy() would let the work continue
        cudaStreamDestroy(p->stream);
    }
    delete p;
}

void Stream::copy_to_device(void *device, const void *host, size_t bytes) {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, get().stream),
          "copying to the device");
}

void Stream::copy_to_host(void *host, const void *device, size_t bytes) {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, get().stream),
          "copying from the device");
}

void Stream::copy_on_device(void *to, const void *from, size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, get().stream), "copying on the device");
}

void Stream::copy_from_device(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    check(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, get().stream),
          "copying between devices");
}

void Stream::fill(void *device, int byte, size_t bytes) {
    check(cudaMemsetAsync(device, byte, bytes, get().stream), "filling memory");
}

void Stream::record(Event &event) {
    check(cudaEventRecord(event.get().event, get().stream), "recording an event");
}

void Stream::wait_for(const Event &event) {
    check(cudaStreamWaitEvent(get().stream, event.get().event, 0), "waiting for an event");
}

void Stream::wait() {
    check(cudaStreamSynchronize(get().stream), "running kernels");
}

Capture::Capture(Stream &stream) : stream_(&stream) {
    check(cudaStreamBeginCapture(stream.get().stream, cudaStreamCaptureModeThreadLocal), "recording a graph");
    stream.get().capturing = true;
}

Capture::~Capture() {
    if (!stream_) return;
    stream_->get().capturing = false;
    cudaGraph_t recorded = nullptr;
    cudaStreamEndCapture(stream_->get().stream, &recorded);
    if (recorded) cudaGraphDestroy(recorded);
    cudaGetLastError();  // clears the error: the exception in flight reports it
}

Graph Capture::end() {
    Stream::Implementation &at = std::exchange(stream_, nullptr)->get();
    at.capturing = false;
    cudaGraph_t recorded = nullptr;
    check(cudaStreamEndCapture(at.stream, &recorded), "recording a graph");
    struct Destroy {
        void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
    };
    const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy> nodes(recorded);
    auto graph = Graph(new Graph::Implementation{});
    graph.get().kernels = kernel_nodes(recorded);
    check(cudaGraphInstantiate(&graph.get().graph, recorded, 0), "instantiating a graph");
    check(cudaGraphUpload(graph.get().graph, at.stream), "uploading a graph");
    return graph;
}

void Stream::replay(const Graph &graph) {
    check(cudaGraphLaunch(graph.get().graph, get().stream), "launching a graph");
    get().launched += graph.kernels();
}

void Stream::launch(const KernelHandle &kernel, const LaunchShape &shape, const void *params, size_t) {
    cudaLaunchAttribute dependent{};
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(shape.blocks);
    config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
    config.dynamicSmemBytes = shape.shared.on(get().turing);
    config.stream = get().stream;
    config.attrs = &dependent;
    config.numAttrs = shape.dependent ? 1 : 0;
    std::array<void *, 1> arguments = {const_cast<void *>(params)};
    const cudaError_t error = cudaLaunchKernelExC(&config, kernel.entry, arguments.data());
    if (error != cudaSuccess) fail(error, std::string("launching the kernel ") + kernel.name);
    if (!get().capturing) ++get().launched;
}

int64_t Stream::launched() const {
    return get().launched;
}

void *Stream::native() const {
    return get().stream;
}

nccl::Find nccl::installed() {
    return nccl::open(nccl::kFile);
}

void prepare(const KernelHandle &kernel, SharedBytes shared) {
    const int device = current_device();
    const size_t bytes = shared.on(on_turing(device)), most = shared_per_block(device);
    if (bytes > most) throw too_little_shared(kernel, bytes, most);
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.entry);  // also loads the kernel
    // Never lowered: other backends of the process may launch the same kernel.
    if (error == cudaSuccess && bytes > static_cast<size_t>(attributes.maxDynamicSharedSizeBytes))
        error = cudaFuncSetAttribute(kernel.entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes));
    if (error == cudaSuccess && switches().carveout)
        error = cudaFuncSetAttribute(kernel.entry, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) fail(error, std::string("preparing the kernel ") + kernel.name);
}

// For code that the driver compiled from PTX, __CUDA_ARCH__ is that of the PTX.
bool can_depend(const KernelHandle &kernel) {
    constexpr int kFirst = 90;
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.entry);
    if (error != cudaSuccess)
        fail(error, std::string("querying the attributes of the kernel ") + kernel.name);
    return attributes.ptxVersion >= kFirst && attributes.binaryVersion >= kFirst;
}

int resident_blocks(const KernelHandle &kernel, SharedBytes shared) {
    int blocks = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel.entry, kernel.threads, shared.on(on_turing(current_device())));
    if (error != cudaSuccess) fail(error, std::string("querying the occupancy of the kernel ") + kernel.name);
    return blocks;
}

}  // namespace runnel::kernels::cuda
