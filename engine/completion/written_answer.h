// Earlier answers of a conversation as the tokens that the model wrote. Encoding their text again may give other
// tokens; with these, the next prompt begins with exactly the tokens that the cache holds.
//
// The tokens are used only where the text of the prompt has them: after the same text as when they were
// written, and only if they spell what follows. Otherwise (the template leaves out the reasoning, the tokens are
// those of another vocabulary or of a damaged file), the text is encoded as usual.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/text/tokenizer.h"
#include "gguf/base/checksum.h"

namespace runnel::completion {

using text::TokenId;

// The text of a prompt that is a conversation.
struct PromptMark {
    uint64_t bytes = 0;  // 0: none
    base::Checksum::Value sum{};
};

struct WrittenAnswer {
    PromptMark after{};  // the prompt that it answered
    std::vector<TokenId> tokens{};
};

PromptMark mark_of(std::span<const text::Segment> segments);

// As Tokenizer::encode(segments), with the tokens of `answers` (in the order of the text) in their places. An
// answer whose end the template trims keeps the tokens that fit as a whole.
std::vector<TokenId> encode(const text::Tokenizer &tokenizer, std::span<const text::Segment> segments,
                            std::span<const WrittenAnswer> answers);

}  // namespace runnel::completion
