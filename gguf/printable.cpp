#include "gguf/printable.h"

#include <cstdint>

namespace runnel::gguf {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `s` (RFC 3629) and its code
// point; 0 if there is none.
size_t utf8_sequence(std::string_view s, uint32_t &code) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
    const uint8_t first = byte(0);
    const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (length == 1) return code = first, 1;
    if (first < 0xc2 || first > 0xf4 || s.size() < length) return 0;
    code = first & (0x7fu >> length);
    for (size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
        code = code << 6 | (byte(i) & 0x3fu);
    }
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    return code < kSmallest[length] || code > 0x10ffff || surrogate ? 0 : length;
}

bool harmless(uint32_t code) {
    if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;  // C0, DEL, C1
    if (code >= 0x200b && code <= 0x200f) return false;              // zero width, direction marks
    if (code >= 0x2028 && code <= 0x202e) return false;              // separators, bidirectional overrides
    if (code == 0x061c) return false;  // the Arabic letter mark, a bidirectional control
    return !(code >= 0x2060 && code <= 0x206f) && code != 0xfeff;  // isolates, invisible operators
}

template <class Keep>
std::string escaped(std::string_view text, size_t most, Keep keep) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        if (out.size() >= most) return out + "...";
        uint32_t code = 0;
        const size_t length = utf8_sequence(text, code);
        const bool as_it_is = length > 0 && keep(code);
        const size_t used = length == 0 ? 1 : length;
        for (size_t i = 0; i < used; ++i) {
            const auto byte = static_cast<uint8_t>(text[i]);
            if (as_it_is)
                out += text[i];
            else
                out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
        }
        text.remove_prefix(used);
    }
    return out;
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
    return escaped(text, most, harmless);
}

std::string quoted(std::string_view text) {
    std::string out = escaped(text, 80, [](uint32_t code) { return code >= 0x20 && code < 0x7f; });
    out.insert(out.begin(), '\'');
    out.push_back('\'');
    return out;
}

}  // namespace runnel::gguf
