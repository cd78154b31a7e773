// UTF-8 input and output: bytes that arrive in pieces, invalid bytes, and text that
// must not control a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace runnel::text {

// The first character of a non-empty text.
struct Utf8Char {
    uint32_t code_point;  // U+FFFD if not valid
    uint32_t bytes;       // >= 1; for an ill-formed sequence its maximal subpart (Unicode 15, 3.9)
    bool valid;
    bool cut_off;  // not valid, but more bytes could make it valid
};
Utf8Char first_char(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Receives the bytes of tokens and returns only whole characters.
class Utf8Stream {
  public:
    // All complete characters so far. Each sequence that can no longer become valid is replaced by one
    // U+FFFD. At most three bytes are held back.
    std::string push(std::string_view bytes);
    // At the end of the text: an incomplete character becomes one U+FFFD.
    std::string flush();

  private:
    std::string pending_;
};

// Makes text safe to print: no control sequence, whole or split over calls, reaches the terminal. Newline and
// tab pass; the other C0 characters, DEL and the C1 characters (U+0080..U+009F) become \xNN with the number
// of their code point; bytes that are not valid UTF-8 become U+FFFD (so a raw 8-bit CSI does not pass).
// Because ESC becomes visible text, so does what follows it, and the function needs no state. Pass whole
// characters (Utf8Stream), or use TerminalFilter for bytes split anywhere.
std::string printable_for_terminal(std::string_view text);

class TerminalFilter {
  public:
    std::string push(std::string_view bytes) { return printable_for_terminal(stream_.push(bytes)); }
    std::string flush() { return printable_for_terminal(stream_.flush()); }

  private:
    Utf8Stream stream_;
};

}  // namespace runnel::text
