// A model file made ready to run: the file, its program on a device, its tokenizer, a cache of the right
// size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/device.h"
#include "engine/decode/executor.h"
#include "engine/decode/placement.h"
#include "engine/decode/sampler.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gguf/base/timer.h"
#include "gguf/file.h"

namespace runnel::decode {

struct CacheOptions {
    int64_t size = 0;  // bytes; 0: for the context, as memory allows
    CacheTypes types = {};
    int32_t window = 0, sinks = 0;  // imposed on the model (model/window.h); 0: none
};

struct EngineOptions {
    std::filesystem::path model;
    int threads = 0;      // <= 0: the physical cores
    int64_t context = 0;  // 0: the model's own, reduced to what fits
    int32_t batch = 512;  // tokens per step of a prefill
    int32_t sequences = 1;
    DeviceRequest device = {};
    CacheOptions cache = {};
    kernels::LoadProgress progress = {};  // of what is uploaded to a GPU
    // Programs that will run beside the model on the same GPU, each with a cache of as many cells: room is
    // left for them, unless layers of the model itself would have to go to the CPU for that.
    int32_t first_layers = 0;           // one of the model's own first so many layers
    std::filesystem::path beside = {};  // another model, its context no longer than its own
};

class Engine {
  public:
    // On the CPU, reads no weights: what a token needs is read when it is computed. A GPU gets the layers
    // that were asked for or that fit (placement.h), with a note when that is not all; one that was not asked
    // for by name and cannot run any is passed over, with a note. Throws gguf::FileError, model::ModelError,
    // text::TokenizerError, kernels::BackendError, DecodeError{OutOfMemory}.
    explicit Engine(const EngineOptions &options);

    const gguf::File &file() const { return file_; }
    const model::Model &model() const { return model_; }
    const text::Tokenizer &tokenizer() const { return *tokenizer_; }
    Executor &executor() { return *executor_; }

    // Where its layers run, in a few words: "all layers on the CPU".
    std::string placement() const;
    // Another backend on the same devices, for a second program: layers of the same names are where this
    // model's are.
    std::unique_ptr<kernels::Backend> another_backend() const;
    // Runs a smaller program beside the model, for as many sequences, with a cache of as many cells or that
    // of `sequences` contexts if that is less: on the model's device, or, with a note to `notes`, on the CPU
    // where the GPU is full.
    std::unique_ptr<Executor> executor_beside(const kernels::Program &program, int32_t sequences,
                                              std::vector<std::string> &notes) const;

    // A sampler that never gives ids which stand for no token. Throws DecodeError{BadInput} for a bias on a
    // token that there is not.
    Sampler sampler(SamplingOptions options) const;

    // What the user should know about how it was set up, a line each.
    const std::vector<std::string> &notes() const { return notes_; }
    double load_seconds() const { return load_seconds_; }

  private:
    void start(const EngineOptions &options);
    bool start_on_gpus(const EngineOptions &options, const DeviceChoice &choice);
    void start_executor(const EngineOptions &options, const ContextPlan &plan);
    ContextRequest context_request(const EngineOptions &options) const;
    std::optional<PlacementPlan> plan_on_gpus(const EngineOptions &options, const DeviceList &devices,
                                              const FreeMemory &free) const;

    base::Clock::time_point started_ = base::Clock::now();
    gguf::File file_;
    model::Model model_;
    std::unique_ptr<text::Tokenizer> tokenizer_;
    kernels::DevicePtr cpu_;
    DeviceList devices_;  // GPUs that have a part in it, and the CPU; the CPU alone where there are none
    std::string placement_ = "all layers on the CPU";
    Placement on_gpus_;
    bool divided_ = false;  // between GPUs and the CPU
    kernels::LoadProgress progress_;
    std::unique_ptr<Executor> executor_;
    std::vector<std::pair<TokenId, float>> never_;  // biases of ids that stand for no token
    // By their texts; made when a sampler first needs them.
    mutable std::map<std::vector<std::string>, std::shared_ptr<const DryBreakers>> breakers_;
    std::vector<std::string> notes_;
    double load_seconds_ = 0;
};

}  // namespace runnel::decode
