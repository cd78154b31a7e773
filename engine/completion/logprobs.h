// Log-probabilities as JSON, in the shapes of OpenAI's API and, for prompts, of vLLM's.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/decode/log_probabilities.h"
#include "engine/text/json.h"
#include "engine/text/tokenizer.h"

namespace runnel::completion {

// A token with its text. Control tokens have no bytes in running text: `text` is then their name in the
// vocabulary. Bytes that are not whole characters are U+FFFD in `text`.
struct SpelledToken {
    text::TokenId id;
    std::string text, bytes;
    bool has_bytes;
    double log_probability;
    int32_t rank;
    std::vector<SpelledToken> top = {};
};
std::vector<SpelledToken> spell(std::span<const decode::TokenLogProbabilities> tokens,
                                const text::Tokenizer &tokenizer);

// For a chat: {"content": [{"token", "logprob", "bytes", "id", "top_logprobs": [{"token", ..}, ..]}, ..]}.
text::Json chat_logprobs(std::span<const SpelledToken> tokens);
// For a completion: {"tokens", "token_logprobs", "top_logprobs": [{text: logprob}], "text_offset"}; offsets
// in characters. If several tokens have the same text, lists the sampled one, or else the most probable one.
text::Json completion_logprobs(std::span<const SpelledToken> tokens);
// [null, {"ID": {"logprob", "rank", "decoded_token"}, ..}, ..]: an entry for each token of the prompt.
text::Json prompt_logprobs(std::span<const SpelledToken> tokens);

}  // namespace runnel::completion
