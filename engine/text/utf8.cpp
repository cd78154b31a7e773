#include "engine/text/utf8.h"

#include <cstring>

namespace runnel::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the sequence that a lead byte starts, 0 if it is not a lead byte, and the bounds of its
// second byte (Unicode 15, table 3-7: these exclude overlong forms, surrogates and code points above
// U+10FFFF).
struct Lead {
    uint32_t bytes;
    uint8_t low = 0x80, high = 0xBF;
};

Lead classify(uint8_t byte) {
    if (byte < 0x80) return {1};
    if (byte >= 0xC2 && byte <= 0xDF) return {2};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    if (byte >= 0xE1 && byte <= 0xEF) return {3};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte >= 0xF1 && byte <= 0xF3) return {4};
    if (byte == 0xF4) return {4, 0x80, 0x8F};
    return {0};
}

// Length of the run of ASCII at the start, in steps of eight bytes.
size_t ascii_prefix(std::string_view text) {
    size_t at = 0;
    for (; at + 8 <= text.size(); at += 8) {
        uint64_t word;
        std::memcpy(&word, text.data() + at, 8);
        if (word & 0x8080808080808080) break;
    }
    return at;
}

// Whether the character must be shown as \xNN.
bool is_unsafe(uint32_t code_point) {
    return (code_point < 0x20 && code_point != '\n' && code_point != '\t') ||
           (code_point >= 0x7F && code_point <= 0x9F);
}

}  // namespace

Utf8Char first_char(std::string_view text) {
    const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const Lead lead = classify(byte_at(0));
    if (lead.bytes == 0) return {0xFFFD, 1, false, false};
    if (lead.bytes == 1) return {byte_at(0), 1, true, false};
    uint32_t code_point = byte_at(0) & (0xFFu >> (lead.bytes + 1));
    for (uint32_t i = 1; i < lead.bytes; ++i) {
        if (i == text.size()) return {0xFFFD, i, false, true};
        const uint8_t byte = byte_at(i), low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
        if (byte < low || byte > high) return {0xFFFD, i, false, false};
        code_point = code_point << 6 | (byte & 0x3F);
    }
    return {code_point, lead.bytes, true, false};
}

bool is_valid_utf8(std::string_view text) {
    while (!text.empty()) {
        text.remove_prefix(ascii_prefix(text));
        for (int i = 0; i < 8 && !text.empty(); ++i) {
            const Utf8Char c = first_char(text);
            if (!c.valid) return false;
            text.remove_prefix(c.bytes);
        }
    }
    return true;
}

std::string Utf8Stream::push(std::string_view bytes) {
    pending_ += bytes;
    std::string whole;
    std::string_view rest = pending_;
    while (!rest.empty()) {
        const Utf8Char c = first_char(rest);
        if (c.cut_off) break;
        whole += c.valid ? rest.substr(0, c.bytes) : kReplacement;
        rest.remove_prefix(c.bytes);
    }
    pending_.erase(0, pending_.size() - rest.size());
    return whole;
}

std::string Utf8Stream::flush() {
    const std::string last(pending_.empty() ? std::string_view() : kReplacement);
    pending_.clear();
    return last;
}

std::string printable_for_terminal(std::string_view text) {
    constexpr char digits[] = "0123456789ABCDEF";
    std::string printable;
    while (!text.empty()) {
        const Utf8Char c = first_char(text);
        if (!c.valid) {
            printable += kReplacement;
        } else if (is_unsafe(c.code_point)) {
            printable += {'\\', 'x', digits[c.code_point >> 4], digits[c.code_point & 15]};
        } else {
            printable += text.substr(0, c.bytes);
        }
        text.remove_prefix(c.bytes);
    }
    return printable;
}

}  // namespace runnel::text
