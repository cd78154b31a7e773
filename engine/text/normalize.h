// Unicode normalization form C, which some models' tokenizers apply to text before they cut it.
#pragma once

#include <string>
#include <string_view>

namespace runnel::text {

// `text` in NFC (Unicode Standard Annex 15; the tables are utf8proc's). Bytes that are not UTF-8 stay as they
// are, and nothing composes across them. Text that is NFC already, as nearly all is, costs one pass over it.
std::string to_nfc(std::string_view text);

// False only where to_nfc(text) may differ from text.
bool is_surely_nfc(std::string_view text);

}  // namespace runnel::text
