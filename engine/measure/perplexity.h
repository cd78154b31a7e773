// Perplexity and Kullback-Leibler divergence of a text, as llama-perplexity defines them.
//
// The text's tokens are split into chunks of `context` tokens (a remainder is dropped). Each chunk starts with
// an empty cache; if the model begins texts with BOS, BOS replaces the chunk's first token. The positions
// context/2 .. context-2 are scored, each on the token after it. With x_i = -log p(token), n of them:
//   perplexity = exp(mean x),   error = perplexity * sqrt((mean x^2 - (mean x)^2) / (n - 1))
// Against a base (log-probabilities from a file, logits_file.h), over the same positions:
//   KL = sum over ids with log p_base > -16 of p_base (log p_base - log p)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/logits_file.h"
#include "engine/text/tokenizer.h"

namespace runnel::measure {

using decode::Executor, decode::SequenceCache, decode::StopRequest;

struct Perplexity {
    double value = 0, error = 0;
    int64_t tokens = 0;  // scored
    struct Divergence {
        double mean = 0, error = 0, largest = 0;
        double same_top = 0;  // share of positions with the same most probable token
    };
    std::optional<Divergence> divergence;
};

// The token with which the model begins a text, if it does: BOS.
inline std::optional<TokenId> text_begin(const text::Tokenizer &tokenizer) {
    return tokenizer.adds_bos() ? tokenizer.bos() : std::nullopt;
}

// Takes the logits of the next scored position; gives the base's log-probabilities of it.
using SaveRow = std::function<void(std::span<const float>)>;
using BaseRow = std::function<std::span<const float>()>;

class PerplexityRun {
  public:
    // `tokens`: a multiple of `context`. `bos`: the first token of every chunk, if any. `save` and `base`
    // (positioned at its first row, with the same context and tokens) may be null. Precondition: 4 <=
    // context <= executor.context().
    PerplexityRun(Executor &executor, std::span<const TokenId> tokens, int32_t context,
                  std::optional<TokenId> bos, LogitsWriter *save, LogitsReader *base);
    PerplexityRun(Executor &executor, std::span<const TokenId> tokens, int32_t context,
                  std::optional<TokenId> bos, SaveRow save, BaseRow base);

    int64_t chunks() const { return static_cast<int64_t>(tokens_.size()) / context_; }
    int64_t done() const { return done_; }

    // Runs the next chunk. Returns false if a stop was requested before its end. Precondition: done() < chunks().
    bool step(const StopRequest *stop = nullptr);

    // The result over the chunks done so far.
    Perplexity result() const;

  private:
    void score(std::span<const float> logits, TokenId next);

    Executor *executor_;
    std::span<const TokenId> tokens_;
    int32_t context_;
    std::optional<TokenId> bos_;
    SaveRow save_;
    BaseRow base_;
    SequenceCache cache_;
    std::vector<float> logits_;
    int64_t done_ = 0, count_ = 0, same_top_ = 0;
    double sum_ = 0, sum_of_squares_ = 0;
    double divergence_ = 0, divergence_squares_ = 0, largest_divergence_ = 0;
};

}  // namespace runnel::measure
