// Completions timed per pass, to compare plain with speculative decoding.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"

namespace runnel::measure {

using decode::Engine, decode::Executor, decode::MakeSpeculator, decode::SamplingOptions;
using decode::Sequence, decode::SpeculationCounts, decode::StopRequest;
using text::TokenId;

// Times of passes, sampling and drafting included.
class PassTimes {
  public:
    // Adds a pass of `tokens`. `drafted`: a draft source ran.
    void add(int32_t tokens, bool drafted, double time) { times_[{tokens, drafted}].push_back(time); }
    // Adds all times of `other`, divided by `unit`.
    void add(const PassTimes &other, double unit);
    // Sum with each time replaced by its kind's median. A kind: number of tokens, drafted or not.
    double total() const;
    // Median over the times of all kinds. Precondition: at least one time was added.
    double median() const;

  private:
    std::map<std::pair<int32_t, bool>, std::vector<double>> times_;
};

class TimedAnswer {
  public:
    // Computes the first token. Keeps all references, but not the prompt. Null `speculators`: plain decoding.
    // Throws base::Interrupted and what CompletionQueue::step throws.
    TimedAnswer(Executor &executor, Engine &engine, const SamplingOptions &how,
                std::span<const TokenId> prompt, int32_t tokens, MakeSpeculator speculators,
                StopRequest &stop);

    // Times of the passes for the next `tokens` tokens, or fewer if the completion ends before. Throws
    // base::Interrupted.
    PassTimes advance(int32_t tokens);
    // All tokens so far. The last pass may have added more than advance() requested.
    const std::vector<TokenId> &tokens() const { return tokens_; }
    SpeculationCounts speculation() const { return queue_.speculation(); }
    // Null when the completion has ended.
    const Sequence *sequence() const { return queue_.sequence(id_); }

  private:
    void step(PassTimes &times);

    const bool drafts_;
    completion::CompletionQueue queue_;
    StopRequest &stop_;
    completion::RequestId id_ = 0;
    std::vector<TokenId> tokens_;
    size_t counted_ = 0;
};

}  // namespace runnel::measure
