// Earlier answers of a conversation as the tokens that the model wrote. Encoding their text again may give other
// tokens; with these, the next prompt begins with exactly the tokens that the cache holds.
//
// The tokens are used only if the prompt's text in front of them is the same as when they were written, and if they
// spell the text that follows. Otherwise (the template leaves out the reasoning, the tokens come from another
// vocabulary or a damaged file), the text is encoded as usual.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/tokenizer.h"
#include "gguf/base/checksum.h"

namespace runnel::completion {

using text::TokenId;

// Identifies the text of a conversation's prompt by its length and checksum.
struct PromptMark {
    uint64_t bytes = 0;  // 0: none
    base::Checksum::Value sum{};
};

struct WrittenAnswer {
    PromptMark after{};  // the prompt of this answer
    std::vector<TokenId> tokens{};
};

PromptMark mark_of(std::span<const text::Segment> segments);

// As Tokenizer::encode(segments), with the tokens of `answers` (in the order of the text) in their places. An
// answer whose end the template trims keeps the tokens that fit as a whole.
std::vector<TokenId> encode(const text::Tokenizer &tokenizer, std::span<const text::Segment> segments,
                            std::span<const WrittenAnswer> answers);

}  // namespace runnel::completion
