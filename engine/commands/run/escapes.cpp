#include "engine/commands/run/escapes.h"

#include <charconv>

namespace runnel::commands {

std::string without_escapes(std::string_view text) {
    constexpr std::string_view kLetters = "ntr\\'\"", kMeanings = "\n\t\r\\'\"";
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '\\' || i + 1 == text.size()) {
            result += text[i];
            continue;
        }
        if (const size_t letter = kLetters.find(text[i + 1]); letter != std::string_view::npos) {
            result += kMeanings[letter];
            ++i;
            continue;
        }
        unsigned byte = 0;
        const char *const digits = text.data() + i + 2;
        if (text[i + 1] == 'x' && i + 3 < text.size() &&
            std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
            result += static_cast<char>(byte);
            i += 3;
        } else {
            result += '\\';
        }
    }
    return result;
}

}  // namespace runnel::commands
