// Beam search: the most probable continuations, found by following several at a time.
//
// At every step the `beams` sequences that are followed have, together, 2 * beams best continuations by
//   s = sum of log p(token), p = softmax of the logits (with the biases, without temperature or filters).
// From the best on (ties: the better sequence, then the lower token) those that end the text (end token, stop
// string, limit) are finished, the first `beams` others are followed. Finished ones compete by the mean
// s / length (length: all tokens, the one that ended it included; Wu et al. 2016 with alpha = 1), `beams` of
// them are kept. The search ends when these are all there and the best sequence followed has no better mean.
// Sequences share the blocks of their common text.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/answer.h"
#include "engine/decode/scheduler.h"
#include "engine/decode/session.h"

namespace runnel::decode {

struct BeamOptions {
    int32_t beams = 4;
    GenerationOptions limits{};
    std::vector<std::pair<TokenId, float>> logit_bias{};  // -infinity forbids a token; ids of the vocabulary
};

struct Hypothesis {
    std::string text;
    std::vector<TokenId> tokens;  // without the one that ended it
    FinishReason reason = FinishReason::Stop;
    double log_probability = 0;
    double score = 0;  // per token
};

class BeamSearch {
  public:
    // Throws DecodeError{BadInput} for a prompt that does not fit. Precondition: !prompt.empty().
    BeamSearch(Executor &executor, Vocabulary vocabulary, BeamOptions options,
               std::span<const TokenId> prompt);

    // One step; false when the search is over or a stop was requested. Throws what Scheduler::step throws,
    // and DecodeError{Failed} for logits that are not finite.
    bool step(const StopRequest *stop = nullptr);

    // Best first. After a stop, with `reason`, also what was being followed.
    std::vector<Hypothesis> results(FinishReason reason = FinishReason::Interrupt) const;
    bool over() const { return over_; }
    int64_t tokens() const { return scheduler_.counts().tokens; }  // computed

  private:
    struct Beam {
        Session session;
        Answer answer;
        std::string text{};
        double log_probability = 0;
        std::vector<std::pair<double, TokenId>> next{};  // best continuations, once its logits were there
    };
    struct Continuation {
        double log_probability;  // of all tokens
        size_t beam;             // index in live_
        TokenId id;
    };
    std::vector<Continuation> continuations() const;
    void look_ahead(Beam &beam);
    bool follow(const std::vector<Continuation> &all);

    Vocabulary vocabulary_;
    BeamOptions options_;
    Scheduler scheduler_;
    std::list<Beam> live_;  // best first
    std::vector<Hypothesis> finished_;
    std::vector<float> logits_;  // with the biases
    bool over_ = false;
};

}  // namespace runnel::decode
