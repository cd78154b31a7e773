// How many tokens to draft, and which to verify: those that bring the most tokens per second, down to none.
//
// A pass that verifies k drafted tokens yields 1 + a_1 + a_1 a_2 + ... + a_1...a_k tokens in expectation, a_i
// being the probability that the i-th is right when those before it were, and costs PassCosts::seconds(1 + k)
// and the time that drafting took. The k of the largest ratio wins; k = 0 is plain decoding. Where a source
// offers branches, trees compete with chains at the same costs (draft_tree.h): where a pass of a few tokens
// costs as much as a pass of one, a second guess for a doubtful token is worth more than a longer chain. How
// often second guesses are right is counted wherever a first guess was wrong, even if they were not verified.
//
// Estimates err, and texts change. An account, in seconds, keeps the loss small: a draft may cost at most its
// balance. It begins with the time of one plain step; every pass adds 0.6% of its time; every accepted token
// adds the plain step it saved; every draft takes out what it cost beyond a plain step, at least 2% of a step
// per token. On an unpredictable text the loss is thus below 1% plus the initial balance. While
// nothing is drafted, the balance grows until it pays for a short draft, which shows whether the text has
// changed. A draft has at most 1 + twice the number of recently accepted tokens. The costs in the account are
// the corrected medians of PassCosts, so that one disturbed pass does not count against drafting.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/decode/speculation/acceptance.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_tree.h"
#include "engine/decode/speculation/pass_costs.h"
#include "engine/decode/speculation/running_median.h"

namespace runnel::decode {

struct DraftLengthOptions {
    int32_t least = 0;     // --draft-min: fewer are not worth a pass (0 and 1 mean the same)
    int32_t most = 16;     // --draft-max
    bool fixed = false;    // always `most` in one chain, whatever it costs: for measurements
    int32_t branches = 4;  // --draft-branches: most continuations side by side; 1: chains only
};

// For one sequence and one source. `beside`: tokens that other sequences bring to the same pass.
class DraftLength {
  public:
    explicit DraftLength(DraftLengthOptions options) : options_(options) {}

    // Before drafting: how many tokens to ask the source for; 0: a plain step. `room`: how many there may be
    // at most (context, batch, limit of the answer).
    int32_t ask(const PassCosts &costs, int32_t room, int32_t beside = 0) const;

    // After drafting: which of the drafted tokens to verify, given the source's probabilities; in total at
    // most options.most.
    DraftShape shape(const PassCosts &costs, std::span<const float> probabilities,
                     std::span<const Branch> branches, int32_t beside = 0) const;
    // shape() for a draft without branches: the length of the chain.
    int32_t keep(const PassCosts &costs, std::span<const float> probabilities, int32_t beside = 0) const {
        return shape(costs, probabilities, {}, beside).length;
    }

    struct Round {
        int32_t asked = 0;                          // 0: the source was not asked
        std::span<const float> probabilities = {};  // of what it drafted
        int32_t verified = 0, accepted = 0;  // of the chain: accepted <= verified <= probabilities.size()
        int32_t in_branches = 0, from_branches = 0;  // tokens verified and accepted there
        // The branch that the source offered where the chain was wrong, even if it was not verified: the
        // probability of its first token, and whether that token was right.
        struct Second {
            float probability;
            bool right;
        };
        std::optional<Second> second = {};
        double draft_seconds = 0;
        int32_t beside = 0;
    };
    // After the pass. (The caller calls PassCosts::observe, once for all sequences of the pass.) The
    // draft_seconds of the first round are not counted, because a draft model computes the prompt then.
    void record(const PassCosts &costs, const Round &round);

    // The current estimate that a drafted token of this source is accepted.
    double acceptance() const { return acceptance_.typical(); }
    // Seconds that drafting a token takes: the median of the last rounds.
    double draft_seconds() const { return drafting_.empty() ? 0 : drafting_.value(); }

  private:
    struct Choice;
    DraftTree tree(std::span<const float> probabilities, std::span<const Branch> branches) const;
    int32_t trusted() const;
    double balance(const PassCosts &costs) const;

    DraftLengthOptions options_;
    Acceptance acceptance_, second_choices_;  // of chains, of the first tokens of branches
    RunningMedian<9> drafting_;               // seconds per token
    bool asked_before_ = false;
    double account_ = 0;  // without the initial balance
};

}  // namespace runnel::decode
