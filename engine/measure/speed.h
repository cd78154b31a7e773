// Prefill and decode speed of a model, compared with the device's memory bandwidth and multiply rate.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/completion/prompt.h"
#include "engine/decode/engine.h"
#include "engine/decode/single_sequence.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/bandwidth.h"

namespace runnel::measure {

using decode::CacheTypes, decode::DeviceRequest, decode::Engine, decode::SingleSequence, decode::StopRequest;
using text::TokenId;

struct SpeedRow {
    enum class Kind { Prefill, Decode, Both, Sequences };
    std::string test;  // "pp512", "tg128 @ d4096", "pp512+tg128", "tg128 x16"
    Kind kind;
    int32_t prompt, generate, depth;  // tokens
    std::vector<double> rates{};      // tokens per second, one per repetition
    int32_t sequences = 1;            // at a time
    std::vector<double> gains{};      // relative to one sequence in the same repetition
    double bytes_per_token = 0;       // minimum bytes moved per token (pass_cost.h); decode only
    bool in_cache = false;            // these bytes fit in the CPU's last-level cache
    double first_token = 0;           // mean seconds; prefill only
    double operations = 0;            // matrix operations per second; prefill only
    // Read bandwidth measured around each repetition, bytes per second; decode only.
    std::vector<double> bandwidths{};
    double launches = 0;  // kernel launches per token; 0 on a CPU; decode only

    double mean() const;
    double deviation() const;
    // Share of the bandwidth that the test reached: the median over the repetitions, because other programs
    // slow test and measurement down alike. nullopt if the model is split over two memories, or if in_cache.
    std::optional<double> share() const;
};

// Measured bandwidth and multiply rate of the device. A GPU is measured once, before the model is loaded; the
// CPU around every test.
class DeviceLimits {
  public:
    // Measures the GPU that the engine will use, if any.
    explicit DeviceLimits(const DeviceRequest &request);
    // Call this if the engine uses the CPU. `working_set`: bytes that a pass reads.
    void use_cpu(int threads, size_t working_set);
    double bandwidth() { return meter_ ? meter_->read() : copies_; }  // bytes per second
    double tensor_rate() const { return tensor_rate_; }               // operations per second; 0: not known
    bool of_gpu() const { return !meter_; }
    // Whether passes that read this many bytes find them in the CPU's last-level cache.
    bool in_cache(double bytes) const { return meter_ && bytes <= static_cast<double>(cache_); }
    size_t cache() const { return cache_; }  // bytes; 0: not known, or a GPU
    // What was measured: "copies", or "reads, best of ...".
    std::string method() const;

  private:
    std::optional<BandwidthMeter> meter_;
    size_t cache_ = 0;
    double copies_ = 0, tensor_rate_ = 0;
};

// Runs tests on one engine. All functions throw base::Interrupted.
class SpeedBench {
  public:
    struct Options {
        int32_t repetitions = 5;
        std::vector<int32_t> sequences = {};  // numbers of concurrent sequences
        CacheTypes types = {};
    };
    // Keeps the references. Computes a token, which brings the weights into memory.
    SpeedBench(const Options &options, Engine &engine, DeviceLimits &limits, const StopRequest &stop);

    SpeedRow prefill(int32_t tokens, int32_t depth);
    SpeedRow decode(int32_t tokens, int32_t depth);
    // A prefill and the decoding after it.
    SpeedRow both(int32_t prompt, int32_t generate, int32_t depth);
    // A row for each of Options::sequences. Each test alternates with a single sequence, so that other
    // programs slow down both alike.
    std::vector<SpeedRow> together(int32_t tokens, int32_t depth);

  private:
    double rate_of(int32_t count, int32_t tokens, int32_t depth);
    std::vector<TokenId> random_tokens(int32_t count);
    void feed(SingleSequence &sequence, int32_t count);

    const Options options_;
    Engine &engine_;
    DeviceLimits &limits_;
    const StopRequest &stop_;
    const completion::PromptFormat format_;
    const bool split_;        // between a GPU and the CPU
    std::mt19937 random_{1};  // the tokens do not affect the speed
};

}  // namespace runnel::measure
