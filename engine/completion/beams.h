// Beam search: finds the most probable continuations by following several at a time.
//
// At every step, the 2 * beams best continuations of all live beams together are taken, by
//   s = sum of log p(token), p = softmax of the logits (with the biases, without temperature or filters).
// From the best on (ties: the better beam, then the lower token), continuations that end the text (end token,
// stop string, limit) are finished, and the first `beams` others become the live beams. The `beams` finished
// ones with the best mean s / length are kept (length: all tokens, the end token included; Wu et al. 2016
// with alpha = 1). The search ends when there are that many and the best live beam has no better mean.
// A constraint removes continuations; the others keep the model's probabilities.
// Sequences share the blocks of their common text.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/completion/answer.h"
#include "engine/decode/constraint.h"
#include "engine/decode/scheduler.h"

namespace runnel::completion {

struct BeamOptions {
    int32_t beams = 4;
    Limits limits{};
    std::vector<std::pair<TokenId, float>> logit_bias{};  // -infinity forbids a token; ids of the vocabulary
    std::optional<decode::Constraint> constraint{};
    bool close = false;  // at a limit, append the shortest text that satisfies the constraint
};

struct Hypothesis {
    std::string text;
    std::vector<TokenId> tokens;  // without the token that ended it
    FinishReason reason = FinishReason::Stop;
    double log_probability = 0;
    double score = 0;                   // per token
    std::optional<bool> complete = {};  // whether the text satisfies the constraint
};

class BeamSearch {
  public:
    // The scheduler must outlive it and compute at least options.beams sequences at a time. Throws
    // DecodeError{BadInput} for a prompt that does not fit. Precondition: !prompt.empty().
    BeamSearch(decode::Executor &executor, decode::Scheduler &scheduler, Vocabulary vocabulary,
               BeamOptions options, std::span<const TokenId> prompt);
    ~BeamSearch();
    BeamSearch(const BeamSearch &) = delete;
    BeamSearch &operator=(const BeamSearch &) = delete;

    // Call after each step of the scheduler: adds a token once all beams are computed. False when the search
    // is over. Throws DecodeError{Failed} for logits that are not finite, and what a constraint throws.
    bool advance();

    // Best first. Includes the live beams, with `reason`, if the search is not over.
    std::vector<Hypothesis> results(FinishReason reason = FinishReason::Interrupt) const;
    bool over() const { return over_; }
    // Tokens computed so far, for the prompt and all beams.
    int64_t computed() const;
    bool started() const { return started_; }  // the prompt is computed

  private:
    struct Beam {
        decode::ScheduledSequence session;
        Answer answer;
        std::optional<decode::Constraint> constraint;
        std::string text{};
        double log_probability = 0;
        std::vector<std::pair<double, TokenId>> next{};  // best continuations, once it has logits
    };
    struct Continuation {
        double log_probability;  // of all tokens
        size_t beam;             // index in live_
        TokenId id;
    };
    std::string end_text(Answer &answer, FinishReason reason, const Beam &parent, bool &closed) const;
    Hypothesis hypothesis(std::string text, const Answer &answer, const Beam &parent, double log_probability,
                          size_t length, bool closed) const;
    std::vector<Continuation> continuations() const;
    void look_ahead(Beam &beam);
    bool follow(const std::vector<Continuation> &all);

    Vocabulary vocabulary_;
    BeamOptions options_;
    decode::Scheduler *scheduler_;
    std::list<Beam> live_;  // best first
    std::vector<Hypothesis> finished_;
    std::vector<float> logits_;  // with the biases
    int64_t computed_ = 0;       // tokens of beams that are no longer live
    bool over_ = false, started_ = false;
};

}  // namespace runnel::completion
