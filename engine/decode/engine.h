// A model file made ready to run: the file, its program on a device, its tokenizer, a cache of the right
// size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/device.h"
#include "engine/decode/executor.h"
#include "engine/decode/hidden_states.h"
#include "engine/decode/placement.h"
#include "engine/decode/sampler.h"
#include "engine/decode/tensor_plan.h"
#include "engine/model/draft_head.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gguf/base/timer.h"
#include "gguf/file.h"
#include "kernels/communicator.h"
#include "kernels/process_group.h"

namespace runnel::decode {

struct CacheOptions {
    int64_t size = 0;  // bytes; 0: what the context needs, as far as memory allows
    CacheTypes types = {};
    int32_t window = 0, sinks = 0;  // imposed on the model (model/window.h); 0: none
};

// Whether the draft block of the file (model/draft_block.h) is used.
enum class Mtp {
    Off,
    Auto,  // if there is one, and all layers run on GPUs or all on the CPU
    On,    // the same, but the caller reports Engine::no_draft_block(), and a damaged block is an error
};

struct EngineOptions {
    std::filesystem::path model;
    int threads = 0;      // <= 0: the physical cores
    int64_t context = 0;  // 0: the model's own, reduced to what fits
    int32_t batch = 512;  // tokens per step of a prefill
    int32_t sequences = 1;
    // Further sequences whose windows the cache keeps (CacheShape::kept): at most as many as fit in an eighth of
    // the free memory, and none if the model uses a GPU.
    int32_t kept_windows = 0;
    // At most one of the two; memory is reserved for it.
    Mtp mtp = Mtp::Off;               // the file's draft block drafts
    std::filesystem::path head = {};  // this draft head drafts; the caller reports no_draft_block()
    DeviceRequest device = {};
    CacheOptions cache = {};
    kernels::WeightStorage weights = {};  // of the layers that run on the CPU
    kernels::LoadProgress progress = {};  // of the upload to a GPU, and of copying weights
    kernels::OnSilence on_silence = {};   // of several processes
    // A program that will run next to the model on the same GPU, with the same number of cells. Memory is reserved
    // for it unless layers of the model would then have to move to the CPU. Set at most one of the two:
    int32_t first_layers = 0;           // the program is the model's own first layers, this many
    std::filesystem::path beside = {};  // the program is this model, with at most its own context length
};

class Engine {
  public:
    // On the CPU, reads no weights, unless they are to be copied or locked: each forward pass reads them from the mapping.
    // A note says so if they could not be locked. A GPU gets the requested
    // layers or those that fit (placement.h), with a note when that is not all. A GPU that was not requested
    // by name and cannot run any layer is skipped, with a note. Throws gguf::FileError, model::ModelError,
    // text::TokenizerError, kernels::BackendError, DecodeError{OutOfMemory}.
    explicit Engine(const EngineOptions &options);

    const gguf::File &file() const { return file_; }
    const model::Model &model() const { return model_; }
    const text::Tokenizer &tokenizer() const { return *tokenizer_; }
    Executor &executor() { return *executor_; }

    // Where the layers run, in a few words: "all layers on the CPU".
    std::string placement() const;
    // The same with what may differ from run to run without a change of the results: "..., gathers by NCCL 2.28.9".
    std::string placement_details() const;
    // Of what ran so far. Waits for the GPUs.
    kernels::ExpertTraffic expert_traffic() const { return executor_->expert_traffic(); }
    // Another backend on the same devices, for a second program: its layers run where this model's layers of
    // the same numbers run, or in this process alone.
    std::unique_ptr<kernels::Backend> another_backend() const;
    // A backend on the device that has the hidden states, for a draft block or head: of several GPUs that have layers each, the
    // last one; of several that have rows of every matrix, the first one; of several processes, this one.
    std::unique_ptr<kernels::Backend> draft_backend() const;
    // An executor for a smaller program next to the model. Its cache has as many cells as the model's, or as
    // `sequences` contexts if that is less. It runs on the model's devices, or, if the GPU is full, on the
    // CPU, with a note added to `notes`.
    std::unique_ptr<Executor> executor_beside(const kernels::Program &program, int32_t sequences,
                                              std::vector<std::string> &notes) const;

    // The programs of the file's draft blocks, or that of the draft head, and the states that the first one reads, which the
    // executor keeps: if they were requested and can be used. Otherwise none, and no_draft_block() says why not.
    std::span<const kernels::Program> draft_blocks() const {
        return states_ ? draft_blocks_ : std::span<const kernels::Program>{};
    }
    const std::shared_ptr<HiddenStates> &hidden_states() const { return states_; }
    const std::string &no_draft_block() const { return no_draft_block_; }
    const model::DraftHead *head() const { return head_ ? &*head_ : nullptr; }

    // A sampler that never draws an id without a token. Throws DecodeError{BadInput} for a bias on a token
    // that does not exist.
    Sampler sampler(SamplingOptions options) const;

    // Notes for the user about how the engine was set up, one line each.
    const std::vector<std::string> &notes() const { return notes_; }
    double load_seconds() const { return load_seconds_; }

  private:
    void find_draft_block(const EngineOptions &options);
    void open_head(const EngineOptions &options);
    std::string draft_block_cannot(const std::string &what) const;
    bool needs_one_device() const;  // the head does
    HiddenStates::Pairs pairs() const;
    kernels::Program program_to_load() const;
    size_t draft_bytes_on(const kernels::Device &gpu, const CacheShape &shape, int32_t sequences) const;
    void start(const EngineOptions &options);
    bool start_on_gpus(const EngineOptions &options, const DeviceChoice &choice);
    void note_experts(std::optional<int32_t> asked, size_t host_bytes);
    void start_tensor_split(const EngineOptions &options, const DeviceChoice &choice);
    TensorPlan plan_with_drafts(const EngineOptions &options, const DeviceChoice &choice,
                                const ContextRequest &request) const;
    void start_processes(const EngineOptions &options, int processes);
    void start_executor(const EngineOptions &options, const ContextPlan &plan);
    std::unique_ptr<kernels::Backend> cpu_backend() const;  // that reports the progress of loading
    ContextRequest context_request(const EngineOptions &options) const;
    ContextRequest context_request_on_cpu(const EngineOptions &options) const;
    int32_t kept_windows(const EngineOptions &options, const ContextPlan &plan) const;
    std::optional<PlacementPlan> plan_on_gpus(const EngineOptions &options, const DeviceList &devices,
                                              const FreeMemory &free) const;

    base::Clock::time_point started_ = base::Clock::now();
    gguf::File file_;
    std::optional<gguf::File> head_file_;
    std::optional<model::DraftHead> head_;
    model::Model model_;
    std::vector<kernels::Program> draft_blocks_;
    std::shared_ptr<HiddenStates> states_;
    std::string no_draft_block_;
    std::unique_ptr<text::Tokenizer> tokenizer_;
    kernels::DevicePtr cpu_;
    DeviceList devices_;  // the GPUs in use, if any, and then the CPU
    std::string placement_ = "all layers on the CPU";
    Placement on_gpus_;
    std::vector<double> tensor_shares_;  // with --split tensor: of the GPUs, or of the processes
    kernels::MatrixCut matrix_cut_ = kernels::MatrixCut::Rows;
    kernels::Communicator *processes_ = nullptr;  // that run the model together; this one leads
    int32_t ranks_ = 1;                           // with --split context: how many of them divide the cells
    bool divided_ = false;                        // the layers run partly on GPUs and partly on the CPU
    kernels::LoadProgress progress_;
    std::unique_ptr<Executor> executor_;
    std::vector<std::pair<TokenId, float>> never_;  // biases that forbid ids without a token
    // DRY breakers as tokens, by their texts; made when a sampler first needs them.
    mutable std::map<std::vector<std::string>, std::shared_ptr<const DryBreakers>> breakers_;
    std::vector<std::string> notes_;
    double load_seconds_ = 0;
};

}  // namespace runnel::decode
