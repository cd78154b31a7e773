// Tokens as labels of pictures and tables.
#pragma once

#include <cstddef>
#include <string>

#include "engine/text/tokenizer.h"

namespace runnel::commands {

// The token's text in at most `most` characters, with \n for line ends and \xNN for control characters,
// bidirectional controls and invalid UTF-8; its id in
// angle brackets if it has no text.
std::string token_text(const text::Tokenizer &tokenizer, text::TokenId id, size_t most);
// Number of UTF-8 characters.
size_t character_count(const std::string &text);

}  // namespace runnel::commands
