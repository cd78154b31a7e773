// UTF-8 at the edges: bytes that come in pieces, bytes that are not text, text that must not steer a
// terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace runnel::text {

// The first character of a text that is not empty.
struct Utf8Char {
    uint32_t code_point;  // U+FFFD if not valid
    uint32_t bytes;  // >= 1; of an ill-formed sequence its maximal subpart (Unicode 15, 3.9, U+FFFD practice)
    bool valid;
    bool cut_off;  // not valid, but more bytes could make it valid
};
Utf8Char first_char(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Takes the bytes of tokens as they come and gives out whole characters only.
class Utf8Stream {
  public:
    // What can be shown now: all complete characters; each sequence that can never become valid is replaced
    // by one U+FFFD as soon as that is certain. At most three bytes are kept back.
    std::string push(std::string_view bytes);
    // The text is over: an incomplete character at its end becomes one U+FFFD.
    std::string flush();

  private:
    std::string pending_;
};

// Makes text harmless to print: no control sequence, whole or split over calls, reaches the terminal. Newline
// and tab pass; the other C0 characters, DEL and the C1 characters (U+0080..U+009F) are shown as \xNN with
// the number of their code point; bytes that are not valid UTF-8 become U+FFFD (so a raw 8-bit CSI does not
// pass). With ESC made visible, what follows it is ordinary text, so the function needs no memory; give it
// whole characters (Utf8Stream), or use TerminalFilter for bytes cut anywhere.
std::string printable_for_terminal(std::string_view text);

class TerminalFilter {
  public:
    std::string push(std::string_view bytes) { return printable_for_terminal(stream_.push(bytes)); }
    std::string flush() { return printable_for_terminal(stream_.flush()); }

  private:
    Utf8Stream stream_;
};

}  // namespace runnel::text
