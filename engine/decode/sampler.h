// From logits to the next token: the sampling chain of llama.cpp, exact and without sorting the vocabulary.
//
// Order and formulas, l_i being the logit of token i and p_i = softmax(l)_i over the candidates left:
//   0. constraint  only the tokens that a grammar allows (constraint.h)
//   1. bias        l_i += bias_i
//   2. penalties   for the tokens of the last `repeat_last_n` of the history, n_i their number there:
//                  l_i = l_i > 0 ? l_i / repeat : l_i * repeat;   l_i -= n_i * frequency + presence
//                  (Keskar et al. 2019, CTRL, with the usual correction for negative logits)
//      temperature <= 0: the candidate of largest l_i alone, the lowest id among equals. Otherwise
//   3. top-k       the k largest l_i
//   4. typical     in ascending order of |-log p_i - H|, H = -sum p_i log p_i, the shortest prefix with
//                  sum p_i > typical                                    (Meister et al. 2022)
//   5. top-p       in descending order of l_i, the shortest prefix with sum p_i >= top_p; p at temperature 1
//   6. min-p       l_i >= max l + log(min_p)
//   7. temperature l_i /= temperature
// Equal values are ordered by id. Every filter keeps at least one candidate. Sums are in double.
//
// Of the candidates that are left, the one of the largest log p_i + g_i is drawn (of equals the lowest id),
// g_i being noise that is a pure function of seed, stream, position and token id (GumbelNoise in random.h),
// the position being the number of tokens before it, those included that a full context has dropped: a draw
// from p that nothing else has part in, and that a second model with the same noise and a similar p mostly
// agrees with (Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative
// Decoding", 2024).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/decode/constraint.h"
#include "engine/text/token.h"
#include "kernels/backend.h"

namespace runnel::decode {

using text::TokenId;

struct SamplingOptions {
    float temperature = 0.8f;
    int32_t top_k = 40;           // <= 0: off
    float top_p = 0.95f;          // >= 1: off
    float min_p = 0.05f;          // <= 0: off
    float typical = 1.0f;         // >= 1: off
    float repeat_penalty = 1.0f;  // 1: off; > 0
    float presence_penalty = 0.0f, frequency_penalty = 0.0f;
    int32_t repeat_last_n = 64;                         // -1: the whole history
    std::vector<std::pair<TokenId, float>> logit_bias;  // -infinity forbids a token
    uint64_t seed = 0;
};

struct Candidate {
    TokenId id;
    float logit;         // after the chain, before the temperature
    double probability;  // after the chain
};

// What the chain leaves: probabilities sum to 1. By descending logit, or by id when no filter was on.
struct Distribution {
    std::vector<Candidate> candidates;

    double probability_of(TokenId id) const;  // 0 for tokens that are no candidates
    // The token at `uniform` in [0, 1) of the cumulative distribution.
    TokenId pick(double uniform) const;
};

class Sampler {
  public:
    // Tokens from `vocab` on never come out. Bias on ids outside [0, vocab): DecodeError{BadInput}.
    Sampler(SamplingOptions options, int32_t vocab);

    // Sequences (or attempts) of one seed that are to differ.
    void set_stream(uint32_t stream) { stream_ = stream; }
    uint32_t stream() const { return stream_; }
    // The context shift removed `tokens` tokens from the history; their noise is not used again.
    void drop(int64_t tokens) {
        dropped_ += tokens;
        if (constraint_) constraint_->drop(tokens);
    }
    // From now on, only tokens that the constraint allows are drawn.
    void constrain(Constraint constraint) { constraint_ = std::move(constraint); }
    Constraint *constraint() { return constraint_ ? &*constraint_ : nullptr; }
    const Constraint *constraint() const { return constraint_ ? &*constraint_ : nullptr; }
    // An answer begins after the first `prompt_tokens` tokens of the history.
    void begin_answer(size_t prompt_tokens) {
        if (constraint_) constraint_->begin(prompt_tokens);
    }
    // Of the noise for the token behind so many.
    uint32_t position(size_t history) const {
        return static_cast<uint32_t>(history + static_cast<uint64_t>(dropped_));
    }

    // The chain. `history`: the tokens before, for the penalties. Valid until the next call.
    // Throws DecodeError{Failed} when a logit is not finite, or when nothing is allowed by the biases.
    // Precondition: logits.size() >= vocab.
    const Distribution &distribution(std::span<const float> logits, std::span<const TokenId> history);

    // A draw from the distribution() of these, with the noise of position(history.size()).
    TokenId sample(std::span<const float> logits, std::span<const TokenId> history);
    // The same from what distribution() gave last.
    TokenId draw(size_t history) const;
    // What draw() would give if `first`, which it gives, were forbidden and no filter had to be passed again;
    // kNoToken where nothing else is left. At temperature 0, where only one candidate is, of all tokens, or
    // of those of the largest logits that others cannot come before.
    TokenId second(size_t history, TokenId first) const;

    // How many of the largest logits of a row mostly decide what distribution() and sample() give: 1 for the
    // largest alone; 0: the whole row does, or more of it than `most`.
    int32_t candidates_needed(int32_t most) const;
    // What distribution() and sample() give for a row of which these are the largest logits
    // (kernels::Backend::execute). Null and nullopt when they do not decide it. Throw what those do.
    const Distribution *distribution(std::span<const kernels::Candidate> largest,
                                     std::span<const TokenId> history);
    std::optional<TokenId> sample(std::span<const kernels::Candidate> largest,
                                  std::span<const TokenId> history);

    const SamplingOptions &options() const { return options_; }
    int32_t vocab() const { return vocab_; }

  private:
    void filter(std::span<const float> logits, std::span<const TokenId> history);
    bool filter(std::span<const kernels::Candidate> largest, std::span<const TokenId> history);
    void keep_after_top_k();
    void load(std::span<const float> logits, std::span<const TokenId> history);
    bool penalizes() const;
    void count(std::span<const TokenId> history);
    float penalized(float logit, int32_t count) const;
    void penalize(std::span<const TokenId> history);
    bool only_lowers() const;
    bool choose(std::span<const kernels::Candidate> largest, std::span<const TokenId> history);
    void keep_top_k();
    void keep_typical();
    void keep_top_p();
    void keep_min_p();
    double softmax(float temperature);  // fills probability; returns the log of the sum of exp(l / t)
    void keep_argmax();
    TokenId largest(size_t history, TokenId excluded) const;

    SamplingOptions options_;
    int32_t vocab_;
    std::optional<Constraint> constraint_;
    uint32_t stream_ = 0;
    int64_t dropped_ = 0;                     // tokens of the history
    bool sorted_ = false;                     // the candidates
    bool whole_ = true;                       // they come from a whole row
    TokenId greedy_second_ = text::kNoToken;  // if not
    std::vector<float> logits_;               // after bias and penalties
    std::unordered_map<TokenId, std::vector<float>> biases_;
    std::unordered_map<TokenId, int32_t> counts_;  // of the penalties' window
    Distribution result_;
};

}  // namespace runnel::decode
