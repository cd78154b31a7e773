// Perplexity and Kullback-Leibler divergence of a text, as llama-perplexity defines them.
//
// The text's tokens are split into chunks of `context` tokens (a remainder is dropped). Each chunk starts with
// an empty cache; if the model begins texts with BOS, BOS replaces the chunk's first token. The positions
// context/2 .. context-2 are scored, each on the token after it. With x_i = -log p(token), n of them:
//   perplexity = exp(mean x),   error = perplexity * sqrt((mean x^2 - (mean x)^2) / (n - 1))
// Against a base (log-probabilities from a file, logits_file.h), over the same positions:
//   KL = sum over ids with log p_base > -16 of p_base (log p_base - log p)
// With a stride the chunks overlap: one begins every `stride` tokens, and only its last `stride` positions with a next
// token are scored, so that each has at least context - stride tokens before it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/logits_file.h"
#include "engine/text/tokenizer.h"

namespace runnel::measure {

using decode::Executor, decode::SequenceCache, decode::StopRequest;

// Which tokens of the text are chunks, and which positions of a chunk are scored.
struct Chunks {
    int32_t context;       // tokens of a chunk
    int32_t stride;        // from the beginning of one chunk to that of the next
    int32_t first_scored;  // from this position to context - 2

    static Chunks adjacent(int32_t context) { return {context, context, measure::first_scored(context)}; }
    // Precondition: 1 <= stride < context.
    static Chunks overlapping(int32_t context, int32_t stride) {
        return {context, stride, context - 1 - stride};
    }

    int32_t scored() const { return context - 1 - first_scored; }  // positions of a chunk
    int64_t count(int64_t tokens) const { return tokens < context ? 0 : 1 + (tokens - context) / stride; }
    int64_t tokens(int64_t chunks) const { return chunks == 0 ? 0 : context + (chunks - 1) * stride; }
};

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

// Throws DecodeError: the model computed a NaN or infinity.
[[noreturn]] void fail_not_finite();

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
                  std::optional<TokenId> bos, SaveRow save, BaseRow base)
        : PerplexityRun(executor, tokens, Chunks::adjacent(context), bos, std::move(save), std::move(base)) {}
    // As above with other chunks. Tokens after the last whole chunk are not used.
    PerplexityRun(Executor &executor, std::span<const TokenId> tokens, const Chunks &chunks,
                  std::optional<TokenId> bos, SaveRow save = {}, BaseRow base = {});

    int64_t chunks() const { return chunks_.count(static_cast<int64_t>(tokens_.size())); }
    int64_t done() const { return done_; }

    // Runs the next chunk. Returns false if a stop was requested before its end. Precondition: done() < chunks().
    bool step(const StopRequest *stop = nullptr);

    // The result over the chunks done so far.
    Perplexity result() const;

  private:
    void score(std::span<const float> logits, TokenId next);

    Executor *executor_;
    std::span<const TokenId> tokens_;
    Chunks chunks_;
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
