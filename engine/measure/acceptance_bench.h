// The gain of speculative decoding at a given acceptance rate, on forced texts, and the upper bound that the
// pass costs allow. The method is in engine/measure/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/speculation/draft_length.h"
#include "engine/decode/speculation/pass_costs.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/teacher_forcing.h"

namespace runnel::measure {

using decode::DraftLengthOptions, decode::Pass, decode::PassCosts, decode::SharedCosts;
using decode::Engine, decode::Executor, decode::StopRequest;
using text::TokenId;

// A second instance of the engine's model that is forced to write a given text (teacher_forcing.h).
class ForcedModel {
  public:
    explicit ForcedModel(Engine &engine);

    Executor &executor() { return *executor_; }
    void set_text(std::vector<TokenId> text) { text_->tokens = std::move(text); }
    // Random tokens with Zipf frequencies: token n in proportion to 1 / n.
    std::vector<TokenId> random_text(int32_t count);
    std::mt19937 &random() { return random_; }

  private:
    Engine &engine_;
    std::shared_ptr<TeacherForcing> text_ = std::make_shared<TeacherForcing>();
    std::unique_ptr<Executor> executor_;
    std::mt19937 random_{1};
};

inline constexpr std::array<double, 5> kAcceptances{0.0, 0.5, 0.8, 0.95, 1.0};
inline constexpr std::array<int32_t, 5> kDraftLengths{1, 2, 4, 8, 16};

struct AcceptanceRow {
    double acceptance;
    double gain, bound;                              // speed relative to plain steps
    std::array<double, kDraftLengths.size()> fixed;  // gain with drafts of a fixed length
    double reached() const { return gain / bound; }
};

// Context size that the measurement needs, in cells.
int64_t acceptance_context(int32_t repetitions);

class AcceptanceBench {
  public:
    // All references must outlive it. `length`: limits for the draft length chosen at run time. Throws what
    // measure_pass_costs() does, and base::Interrupted.
    AcceptanceBench(Engine &engine, ForcedModel &model, int32_t repetitions, DraftLengthOptions length,
                    StopRequest &stop);

    // Throws base::Interrupted and what CompletionQueue::step throws.
    AcceptanceRow measure(double acceptance);
    // Costs of all passes measured so far, in units of one plain step. Precondition: measure() was called.
    PassCosts passes() const { return PassCosts(passes_); }
    // Costs in seconds, from the first measurement.
    const std::shared_ptr<SharedCosts> &costs() const { return costs_; }

  private:
    class Run;
    double fixed_gain(double acceptance, int32_t length);

    Engine &engine_;
    ForcedModel &model_;
    const int32_t repetitions_;
    const DraftLengthOptions length_;
    StopRequest &stop_;
    std::shared_ptr<SharedCosts> costs_;
    std::vector<Pass> passes_;  // in plain steps
    uint64_t texts_ = 0;
};

}  // namespace runnel::measure
