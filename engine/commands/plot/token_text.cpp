#include "engine/commands/plot/token_text.h"

#include <algorithm>

#include "gguf/printable.h"

namespace runnel::commands {
namespace {

bool begins_character(char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

}  // namespace

size_t character_count(const std::string &text) {
    return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

std::string token_text(const text::Tokenizer &tokenizer, text::TokenId id, size_t most) {
    std::string text;
    for (const char c : tokenizer.decode(id, true)) {
        if (c == '\n')
            text += "\\n";
        else if (c == '\t')
            text += "\\t";
        else
            text += c;
    }
    text = gguf::printable(text, std::string::npos);
    if (text.empty()) text = "<" + std::to_string(id) + ">";
    if (character_count(text) <= most) return text;
    std::string cut;
    size_t count = 0;
    for (const char c : text) {
        count += begins_character(c);
        if (count + 1 >= most) break;
        cut += c;
    }
    return cut + "..";
}

}  // namespace runnel::commands
