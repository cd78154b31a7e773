#include "kernels/device.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/system_memory.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/runtime/devices.h"
#include "kernels/cuda/runtime/probe.h"
#include "kernels/cuda/runtime/switches.h"
#include "kernels/steps.h"

namespace runnel::kernels {
namespace {

constexpr std::string_view kCuda = "cuda";

class CpuDevice final : public Device {
  public:
    CpuDevice(int threads, WeightStorage storage)
        : threads_(threads), storage_(storage), weights_(std::make_shared<cpu::WeightMemory>(storage)) {}

    std::string name() const override { return "cpu"; }
    DeviceInfo info() const override { return backend()->info(); }
    size_t free_memory() const override { return cpu::system_memory().available; }
    MemoryNeed need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const override {
        // Upper bound on activations, logits and everything else, for every model that is practical on a CPU.
        constexpr size_t kWork = size_t{256} << 20;
        MemoryNeed need{
            .cache = cache_need(program, cache, max_tokens), .work = kWork, .mapped = !storage_.copied};
        if (storage_.copied) {
            need.weights = cpu::weights_read(program);
            return need;
        }
        for (const Weight &weight : program.weights) need.weights += weight.bytes();
        // A token reads a few rows of these tables, which may be larger than the memory.
        for_each_step<HashedEmbed>(program, [&](const HashedEmbed &step) {
            need.weights -= program.weights[static_cast<size_t>(step.table)].bytes();
        });
        return need;
    }
    size_t cache_need(const Program &program, const CacheConfig &cache, int32_t) const override {
        return block_bytes(program, cache);
    }
    std::vector<std::string> missing(const Program &program) const override {
        return std::vector<std::string>(program.steps.size());
    }
    std::unique_ptr<Backend> backend() const override {
        return cpu::make_cpu_backend(threads_, {}, weights_);
    }
    std::string note() const override { return weights_->problem(); }

  private:
    const int threads_;
    const WeightStorage storage_;
    const std::shared_ptr<cpu::WeightMemory> weights_;
};

class CudaDevice final : public Device {
  public:
    CudaDevice(int number, DeviceInfo info) : number_(number), info_(std::move(info)) {}

    std::string name() const override { return std::string(kCuda) + ":" + std::to_string(number_); }
    DeviceInfo info() const override { return info_; }
    size_t free_memory() const override { return cuda::free_memory(number_); }
    MemoryNeed need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const override {
        return cuda::memory_need(program, cache, max_tokens);
    }
    size_t cache_need(const Program &program, const CacheConfig &cache, int32_t max_tokens) const override {
        return cuda::cache_memory(program, cache, max_tokens);
    }
    size_t gather_need(const Program &program, int32_t max_tokens) const override {
        return cuda::gather_memory(program, max_tokens);
    }
    std::vector<std::string> missing(const Program &program) const override {
        return cuda::missing_kernels(program);
    }
    std::unique_ptr<Backend> backend() const override { return cuda::make_cuda_backend(number_); }
    std::string note() const override { return cuda::compile_note(number_); }
    double copy_bandwidth() const override { return cuda::copy_bandwidth(number_); }
    double tensor_rate() const override { return cuda::tensor_rate(number_); }
    uint64_t changed_words(size_t bytes, uint64_t seed) const override {
        return cuda::changed_words(number_, bytes, seed);
    }

  private:
    int number_;
    DeviceInfo info_;
};

}  // namespace

DevicePtr cpu_device(int threads, WeightStorage weights) {
    return std::make_shared<CpuDevice>(threads, weights);
}

Devices devices(int threads) {
    Devices all{.cpu = cpu_device(threads), .gpus = {}, .gpu_kind = std::string(kCuda)};
    const cuda::Devices found = cuda::find_devices();
    all.gpus_compiled_in = found.compiled_in;
    all.why_no_gpu = found.why_none;
    all.absence = found.absence;
    if (const char *off = std::getenv(cuda::kSwitchesVariable); off != nullptr && *off != 0)
        all.notes.push_back({cuda::kSwitchesVariable, std::string("disabled: ") + off});
    for (const DeviceInfo &info : found.found)
        all.gpus.push_back(std::make_shared<CudaDevice>(static_cast<int>(all.gpus.size()), info));
    return all;
}

bool is_device_name(const std::string &name) {
    if (name == "cpu" || name == kCuda) return true;
    const std::string_view number = std::string_view(name).substr(std::min(name.size(), kCuda.size() + 1));
    return name.starts_with(std::string(kCuda) + ":") && !number.empty() && number.size() < 10 &&
           std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace runnel::kernels
