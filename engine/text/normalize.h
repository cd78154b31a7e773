// Unicode normalization form C, which some models' tokenizers apply to text before splitting it.
#pragma once

#include <string>
#include <string_view>

namespace runnel::text {

// `text` in NFC (Unicode Standard Annex 15; the tables are utf8proc's). Bytes that are not valid UTF-8 are
// kept, and nothing composes across them. Text already in NFC, the usual case, costs one pass.
std::string to_nfc(std::string_view text);

// False if to_nfc(text) may differ from text.
bool is_surely_nfc(std::string_view text);

}  // namespace runnel::text
