// Answers in the making, timed pass by pass: for comparing plain with speculative decoding.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

// What passes took, sampling and drafting included.
class PassTimes {
  public:
    // A pass of `tokens`; `drafted`: a draft source ran.
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

class TimedAnswer {
  public:
    // Computes the first token. Keeps all references, but not the prompt; without `speculators`, nothing is
    // drafted. Throws what CompletionQueue::step does, and base::Interrupted.
    TimedAnswer(Executor &executor, Engine &engine, const SamplingOptions &how,
                std::span<const TokenId> prompt, int32_t tokens, MakeSpeculator speculators,
                StopRequest &stop);

    // What the next `tokens` take, or as many as are left. Throws base::Interrupted.
    PassTimes advance(int32_t tokens);
    // All tokens so far, including those that advance() has not counted yet.
    const std::vector<TokenId> &tokens() const { return tokens_; }
    SpeculationCounts speculation() const { return queue_.speculation(); }
    // Null when the answer has ended.
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

}  // namespace runnel::decode
