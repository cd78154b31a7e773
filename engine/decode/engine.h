// A model file made ready to run: the file, its program on a device, its tokenizer, a cache of the right
// size.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/device.h"
#include "engine/decode/executor.h"
#include "engine/decode/generator.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
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
};

class Engine {
  public:
    // On the CPU, reads no weights: what a token needs is read when it is computed. A GPU that was not asked
    // for by name and cannot run the model is passed over, with a note. Throws gguf::FileError,
    // model::ModelError, text::TokenizerError, kernels::BackendError, DecodeError{OutOfMemory}.
    explicit Engine(const EngineOptions &options);

    const gguf::File &file() const { return file_; }
    const model::Model &model() const { return model_; }
    const text::Tokenizer &tokenizer() const { return *tokenizer_; }
    Executor &executor() { return *executor_; }
    Vocabulary vocabulary() const { return vocabulary_of(*tokenizer_); }

    // Another backend on the same device, for a second program.
    std::unique_ptr<kernels::Backend> another_backend() const;

    // A sampler that never gives ids which stand for no token. Throws DecodeError{BadInput} for a bias on a
    // token that there is not.
    Sampler sampler(SamplingOptions options) const;

    // What the user should know about how it was set up, a line each.
    const std::vector<std::string> &notes() const { return notes_; }
    double load_seconds() const { return load_seconds_; }

  private:
    void start(const EngineOptions &options);
    void start_executor(const EngineOptions &options, std::unique_ptr<kernels::Backend> backend);

    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
    gguf::File file_;
    model::Model model_;
    std::unique_ptr<text::Tokenizer> tokenizer_;
    int threads_ = 0;
    std::optional<int> cuda_;  // the number of the GPU that runs it
    std::unique_ptr<Executor> executor_;
    std::vector<std::pair<TokenId, float>> never_;  // biases of ids that stand for no token
    std::vector<std::string> notes_;
    double load_seconds_ = 0;
};

}  // namespace runnel::decode
