// Characters as Python's str counts and classifies them: code points, not bytes. An ill-formed UTF-8 sequence
// counts as one character and is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::text::jinja {

bool is_space(uint32_t code_point);       // str.isspace()
bool is_alphabetic(uint32_t code_point);  // str.isalpha()
bool is_decimal(uint32_t code_point);     // str.isdecimal()
bool is_upper(uint32_t code_point);       // of str.isupper(): a capital letter
bool is_lower(uint32_t code_point);
bool is_word(uint32_t code_point);  // \w

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);       // str.title(): a capital after every character without case
std::string capitalize(std::string_view text);  // first character in title case, the others lower
std::string swap_case(std::string_view text);

size_t count_characters(std::string_view text);
// The offset of each character, and the end: count_characters() + 1 numbers.
std::vector<size_t> character_offsets(std::string_view text);

// Bytes of white space at the start, or at the end.
size_t leading_space(std::string_view text);
size_t trailing_space(std::string_view text);

void append_utf8(std::string &text, uint32_t code_point);  // U+FFFD for an invalid code point

}  // namespace runnel::text::jinja
