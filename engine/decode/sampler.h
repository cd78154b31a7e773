// From logits to the next token: the sampling chain of llama.cpp, exact and without sorting the vocabulary.
//
// Default order and formulas, l_i being the logit of token i and p_i = softmax(l)_i over the candidates left:
//   constraint     only the tokens that a grammar allows (constraint.h); always first
//   bias           l_i += bias_i; always second
//   penalties      for the tokens of the last `repeat_last_n` of the history, n_i their number there:
//                  l_i = l_i > 0 ? l_i / repeat : l_i * repeat;   l_i -= n_i * frequency + presence
//                  (Keskar et al. 2019, CTRL, with the usual correction for negative logits)
//   DRY            l_i -= multiplier * base^(L_i - allowed length), L_i the length of the repetition that
//                  token i would continue (dry.h)
//      temperature <= 0: the candidate of largest l_i alone, the lowest id among equals. Otherwise
//   top-n-sigma    l_i >= max l - n * (standard deviation of l)            (Tang et al. 2024)
//   top-k          the k largest l_i
//   typical        in ascending order of |-log p_i - H|, H = -sum p_i log p_i, the shortest prefix with
//                  sum p_i > typical                                    (Meister et al. 2022)
//   top-p          in descending order of l_i, the shortest prefix with sum p_i >= top_p
//   min-p          l_i >= max l + log(min_p)
//   XTC            with xtc_probability: of the tokens with p_i >= xtc_threshold only the least probable one.
//                  The coin is uniform() in random.h: a function of seed, stream and position
//   temperature    l_i /= T; T = temperature, or with a range r (dynamic temperature), for n candidates,
//                  T = low + (high - low) * (H / log n)^exponent, low = max(0, temperature - r),
//                  high = temperature + r
//   adaptive-p     with a target: l_i = 5 - 10 d^2 / (1 + d), d = |p_i - t| / 0.3, t = 2 * target - S / W in
//                  [0, 1]. After each draw x, with p before the transform: S = p_x + decay * S,
//                  W = 1 + decay * W; at first S = target / (1 - decay), W = 1 / (1 - decay)
// `samplers` puts the steps in another order. Filters after the temperature use the p_i at that temperature.
//
// Mirostat (Basu et al. 2020) replaces all filters after DRY except the temperature: version 2 keeps
// -log2 p_i <= mu, version 1 a top-k estimated from mu; mu -= eta * (-log2 p_x - tau) after each draw x, mu = 2
// tau at first.
//
// Equal values are ordered by id. Every filter keeps at least one candidate. Sums are in double.
//
// The draw takes the remaining candidate with the largest log p_i + g_i (of equals the lowest id). The
// noise g_i is a pure function of seed, stream, position and token id (GumbelNoise in random.h); the
// position is the number of tokens before the draw, including those that a context shift dropped. The
// result is an exact draw from p. A second model with the same noise and a similar p mostly draws the same
// token (Daliri, Musco, Suresh: "Coupling without Communication and Drafter-Invariant Speculative
// Decoding", 2024).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/decode/candidates.h"
#include "engine/decode/constraint.h"
#include "engine/decode/dry.h"
#include "engine/decode/sampling_options.h"
#include "engine/text/token.h"
#include "kernels/backend.h"

namespace runnel::decode {

using text::TokenId;

class Sampler {
  public:
    // Never draws ids from `vocab` on. Throws DecodeError{BadInput} for a bias on an id outside [0, vocab).
    Sampler(SamplingOptions options, int32_t vocab);

    // Different streams of one seed draw independently: for several sequences or attempts.
    void set_stream(uint32_t stream) { stream_ = stream; }
    uint32_t stream() const { return stream_; }
    // The context shift removed `tokens` tokens from the history, behind the first `keeping` ones; their noise is not
    // used again.
    void drop(int64_t tokens, size_t keeping = 0) {
        dropped_ += tokens;
        if (constraint_) constraint_->drop(tokens, keeping);
    }
    // From now on, only tokens that the constraint allows are drawn.
    void constrain(Constraint constraint) { constraint_ = std::move(constraint); }
    Constraint *constraint() { return constraint_ ? &*constraint_ : nullptr; }
    const Constraint *constraint() const { return constraint_ ? &*constraint_ : nullptr; }
    // Called before each draw with the history and the number of tokens dropped from it; a token that it
    // returns is the next one, whatever the logits are. Copied with the sampler.
    using Forced = std::function<std::optional<TokenId>(std::span<const TokenId> history, int64_t dropped)>;
    void force(Forced forced) { forced_ = std::move(forced); }
    // Writes the tokens that the grammar allows after `history`, as in kernels::TokenMask. False, and `bits` is
    // undefined, if there is nothing to mask, or if the grammar allows no token or fails: the draw reports that.
    bool mask(std::span<const TokenId> history, std::span<uint64_t> bits);
    // An answer begins after the first `prompt_tokens` tokens of the history.
    void begin_answer(size_t prompt_tokens) {
        if (constraint_) constraint_->begin(prompt_tokens);
    }
    // Shared by samplers of one vocabulary; null: none.
    void set_dry_breakers(std::shared_ptr<const DryBreakers> breakers) { breakers_ = std::move(breakers); }
    // True if a draw depends on the draws before it (mirostat, adaptive-p).
    bool depends_on_draws() const { return options_.mirostat > 0 || options_.adaptive_target >= 0; }
    // The position of the noise for the token that follows `history` tokens.
    uint32_t position(size_t history) const {
        return static_cast<uint32_t>(history + static_cast<uint64_t>(dropped_));
    }

    // Applies the chain. `history`: the tokens before, for the penalties. Valid until the next call.
    // Throws DecodeError{Failed} when a logit is not finite, or when the biases forbid every token.
    // Precondition: logits.size() >= vocab.
    const Distribution &distribution(std::span<const float> logits, std::span<const TokenId> history);

    // Draws from distribution(logits, history) with the noise of position(history.size()), and updates the
    // state of mirostat and adaptive-p for the next position, which distribution() and draw() do not.
    TokenId sample(std::span<const float> logits, std::span<const TokenId> history);
    // Draws from what distribution() returned last, for a history of `history` tokens.
    TokenId draw(size_t history) const;
    // The runner-up token under the same noise, or kNoToken. Greedy: the second-largest logit, if it is known.
    // Precondition: draw(history) gives `first`.
    TokenId second(size_t history, TokenId first) const;

    // Size of the top-k that usually decides the draw; 1: argmax only; 0: needs the full row, or more than
    // `most` logits.
    int32_t candidates_needed(int32_t most) const;
    // distribution() and sample() for a row of which only the largest logits are known
    // (kernels::Backend::execute). Null and nullopt when these are not enough. They throw the same errors.
    // `masked`: they were selected with mask(history).
    const Distribution *distribution(std::span<const kernels::TopLogit> largest,
                                     std::span<const TokenId> history, bool masked = false);
    std::optional<TokenId> sample(std::span<const kernels::TopLogit> largest,
                                  std::span<const TokenId> history, bool masked = false);

    const SamplingOptions &options() const { return options_; }
    int32_t vocab() const { return vocab_; }

  private:
    // The state of mirostat (mu) and adaptive-p (S, W) before a draw.
    struct Carried {
        double mu, sum, weight;
    };
    void choose_steps();
    bool take_forced(std::span<const TokenId> history);
    void filter(std::span<const float> logits, std::span<const TokenId> history);
    bool filter(std::span<const kernels::TopLogit> largest, std::span<const TokenId> history, bool masked);
    void apply(SamplerKind step, std::span<const TokenId> history);
    void apply_all(size_t first_step, std::span<const TokenId> history);
    void load(std::span<const float> logits, std::span<const TokenId> history);
    bool penalizes() const;
    void count(std::span<const TokenId> history);
    float penalized(float logit, int32_t count) const;
    void penalize(std::span<const TokenId> history);
    void penalize_repetition(std::span<const TokenId> history);
    void scale();
    bool only_lowers() const;
    bool choose(std::span<const kernels::TopLogit> largest, std::span<const TokenId> history, bool masked);
    void gather(int32_t k);
    void keep_argmax();
    TokenId largest(size_t history, TokenId excluded) const;
    Carried carried(size_t history) const;
    TokenId draw_and_carry(size_t history);

    SamplingOptions options_;
    int32_t vocab_;
    std::optional<Constraint> constraint_;
    Forced forced_;
    bool is_forced_ = false;  // the only candidate is a forced token
    uint32_t stream_ = 0;
    int64_t dropped_ = 0;                     // tokens that context shifts removed from the history
    std::vector<SamplerKind> steps_;          // the enabled steps, in order
    bool greedy_ = false, by_count_ = false;  // by_count_: top-k comes before other filters
    bool gathered_ = false;                   // the candidates are in set_; before that, in logits_
    bool whole_ = true;                       // the candidates come from a whole row
    TokenId greedy_second_ = text::kNoToken;  // for second(), if !whole_
    std::vector<float> logits_;
    std::unordered_map<TokenId, std::vector<float>> biases_;
    std::unordered_map<TokenId, int32_t> counts_;  // occurrences in the penalties' window
    std::shared_ptr<const DryBreakers> breakers_;
    CandidateSet set_;
    std::vector<double> probabilities_;    // before adaptive-p's transform
    std::map<uint32_t, Carried> carried_;  // by position; only the newest are kept
};

}  // namespace runnel::decode
