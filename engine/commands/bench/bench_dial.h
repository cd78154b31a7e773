// How near speculation comes to what the machine allows: drafts whose acceptance is set by hand, on texts
// that the model is made to say.
//
// The bound is what drafts of the best fixed length would gain if a pass cost what it costs and nothing else
// took time. It is compared with what is gained when the length is chosen at run time. Other programs slow
// this machine down at any time, so nothing is compared with what was measured a second ago: a few plain
// tokens, a few tokens with drafts, and passes of two sizes take turns, and every time is divided by that of
// the plain tokens around it. Of passes of one size, the median counts for all.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/commands/options.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/forced_text.h"
#include "engine/decode/speculation/pass_costs.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/stop_request.h"

namespace runnel::commands {

// The engine's model, made to say a text: computes all that it would, and says something else.
class ForcedModel {
  public:
    explicit ForcedModel(decode::Engine &engine);

    decode::Executor &executor() { return *executor_; }
    void say(std::vector<text::TokenId> text) { text_->tokens = std::move(text); }
    // Tokens as frequent as words are: the n-th in proportion to 1 / n.
    std::vector<text::TokenId> made_up(int32_t count);
    std::mt19937 &random() { return random_; }

  private:
    decode::Engine &engine_;
    std::shared_ptr<decode::ForcedText> text_ = std::make_shared<decode::ForcedText>();
    std::unique_ptr<decode::Executor> executor_;
    std::mt19937 random_{1};
};

// What passes took, sampling and drafting included.
class PassTimes {
  public:
    // A pass of `tokens`; `drafted`: a source was asked.
    void add(int32_t tokens, bool drafted, double time) { times_[{tokens, drafted}].push_back(time); }
    // All of `other`, divided by `unit`.
    void add(const PassTimes &other, double unit);
    // All passes together, if each took the median of its kind.
    double total() const;
    // The median of a pass, of any kind. Precondition: there is one.
    double median() const;

  private:
    std::map<std::pair<int32_t, bool>, std::vector<double>> times_;
};

// One answer in the making, pass by pass.
class TimedAnswer {
  public:
    // Computes the first token. Keeps all references, but not the prompt; without `speculators`, nothing is
    // drafted. Throws what CompletionQueue::step does, and Interrupted.
    TimedAnswer(decode::Executor &executor, decode::Engine &engine, const decode::SamplingOptions &how,
                std::span<const text::TokenId> prompt, int32_t tokens, decode::MakeSpeculator speculators,
                decode::StopRequest &stop);

    // What so many tokens more take, or as many as there are left. Throws Interrupted.
    PassTimes advance(int32_t tokens);
    // All tokens so far, including those that advance() has not counted yet.
    const std::vector<text::TokenId> &tokens() const { return tokens_; }
    decode::SpeculationCounts speculation() const { return queue_.speculation(); }
    // Null when the answer has ended.
    const decode::Sequence *sequence() const { return queue_.sequence(id_); }

  private:
    void step(PassTimes &times);

    const bool drafts_;
    completion::CompletionQueue queue_;
    decode::StopRequest &stop_;
    completion::RequestId id_ = 0;
    std::vector<text::TokenId> tokens_;
    size_t counted_ = 0;
};

inline constexpr std::array<double, 5> kDialAcceptances{0.0, 0.5, 0.8, 0.95, 1.0};
inline constexpr std::array<int32_t, 5> kDialLengths{1, 2, 4, 8, 16};

struct DialRow {
    double acceptance;
    double gain, bound;                             // times the speed of plain steps
    std::array<double, kDialLengths.size()> fixed;  // gain with drafts that are always so long
    double reached() const { return gain / bound; }
};

// Cells of context that measuring takes.
int64_t dial_context(const BenchOptions &options);

class DialBench {
  public:
    // All are kept. Throws what measure_pass_costs() does, and Interrupted.
    DialBench(const BenchOptions &options, decode::Engine &engine, ForcedModel &model,
              decode::StopRequest &stop);

    // Throws Interrupted, and what CompletionQueue::step does.
    DialRow measure(double acceptance);
    // Of all that was measured so far; in plain steps. Only what is asked for once something was measured.
    decode::PassCosts passes() const { return decode::PassCosts(passes_); }
    // In seconds, as they were measured at first.
    const std::shared_ptr<decode::SharedCosts> &costs() const { return costs_; }

  private:
    class Run;
    double fixed_gain(double acceptance, int32_t length);

    const BenchOptions &options_;
    decode::Engine &engine_;
    ForcedModel &model_;
    decode::StopRequest &stop_;
    std::shared_ptr<decode::SharedCosts> costs_;
    std::vector<decode::Pass> passes_;  // in plain steps
    uint64_t texts_ = 0;
};

}  // namespace runnel::commands
