// Replaces substrings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace runnel::text {

// `text` with every `from` (not empty) replaced by `to`, left to right, without overlaps.
inline std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
    std::string result;
    for (size_t at; (at = text.find(from)) != text.npos; text.remove_prefix(at + from.size()))
        result.append(text.substr(0, at)).append(to);
    return result.append(text);
}

}  // namespace runnel::text
