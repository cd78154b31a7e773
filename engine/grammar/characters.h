// Single characters, as the parsers look at them.
#pragma once

namespace runnel::grammar {

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

// The value of a hexadecimal digit; -1 for other characters.
constexpr int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

}  // namespace runnel::grammar
