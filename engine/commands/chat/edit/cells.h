// How text appears in the cells of a terminal: grapheme clusters, their widths, and the characters that must
// not be written as they are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace runnel::commands {

// Number of bytes of the first grapheme cluster of a non-empty valid UTF-8 text (UAX 29). A longer cluster is
// cut at about 256 bytes.
size_t first_grapheme(std::string_view text);

// Cells that a grapheme cluster takes on a terminal: 0, 1 or 2.
int grapheme_width(std::string_view grapheme);

// Sum of the widths of all clusters.
int text_width(std::string_view text);

// The text that displays a grapheme cluster of valid UTF-8. A control character becomes ^X, a bidirectional
// control or line separator its code point (<U+202E>); a cluster of width 0 gets a dotted circle in front.
std::string shown_grapheme(std::string_view grapheme);

// Valid UTF-8 without control characters except newline and tab, from any bytes: invalid ones become U+FFFD, "\r\n"
// and "\r" become "\n".
std::string clean_text(std::string_view bytes);

// "1,448"
std::string grouped(size_t number);

}  // namespace runnel::commands
