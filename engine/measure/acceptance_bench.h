// How near speculation comes to what the machine allows: drafts of a fixed acceptance, on texts that the model
// is forced to write.
//
// The bound is what drafts of the best fixed length would gain if a pass cost what it costs and nothing else
// took time. It is compared with the gain when the length is chosen at run time. Other programs slow this
// machine down at any time, so no figure is compared with one of a second ago: a few plain tokens, a few
// tokens with drafts, and passes of two sizes take turns, and every time is divided by that of the plain
// tokens around it. Of passes of one size, the median counts for all.
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

namespace runnel::decode {

// The engine's model, forced to write a text: it computes all that it would, and writes the given text.
class ForcedModel {
  public:
    explicit ForcedModel(Engine &engine);

    Executor &executor() { return *executor_; }
    void say(std::vector<TokenId> text) { text_->tokens = std::move(text); }
    // Tokens as frequent as words are: the n-th in proportion to 1 / n.
    std::vector<TokenId> made_up(int32_t count);
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
    double gain, bound;                              // times the speed of plain steps
    std::array<double, kDraftLengths.size()> fixed;  // gain with drafts that are always so long
    double reached() const { return gain / bound; }
};

// Cells of context that measuring takes.
int64_t acceptance_context(int32_t repetitions);

class AcceptanceBench {
  public:
    // Keeps all references. `length`: the bounds of the lengths that are chosen at run time. Throws what
    // measure_pass_costs() does, and base::Interrupted.
    AcceptanceBench(Engine &engine, ForcedModel &model, int32_t repetitions, DraftLengthOptions length,
                    StopRequest &stop);

    // Throws base::Interrupted, and what CompletionQueue::step does.
    AcceptanceRow measure(double acceptance);
    // Of all passes measured so far, in plain steps. Precondition: measure() was called.
    PassCosts passes() const { return PassCosts(passes_); }
    // In seconds, as they were measured at first.
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

}  // namespace runnel::decode
