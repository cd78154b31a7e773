// Turns the bytes of a terminal into keys. Knows the sequences that today's terminals send, whatever TERM is,
// without terminfo. Accepts any bytes: unknown sequences become Key::Unknown.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace runnel::commands {

struct Key {
    enum Name {
        Text,     // `text`: one or more printable characters
        Paste,    // `text`: what was pasted, cleaned (clean_text), without newlines at its end
        Control,  // `text`: the letter of Ctrl-letter in lower case, for those without a name below
        Enter,
        Newline,  // Alt-Enter, Ctrl-J, and Shift-Enter if the terminal distinguishes it
        Tab,
        Backspace,
        Delete,
        Left,
        Right,
        Up,
        Down,
        Home,
        End,
        WordLeft,
        WordRight,
        EraseWordLeft,   // Alt-Backspace
        EraseWordRight,  // Alt-D
        Escape,
        Unknown,
    };
    Name name;
    std::string text = {};

    bool operator==(const Key &) const = default;
};

class KeyDecoder {
  public:
    void push(std::string_view bytes) { bytes_ += bytes; }
    // The next key; nullopt until there are more bytes.
    std::optional<Key> next();
    // True if the remaining bytes are the beginning of a sequence.
    bool waits() const { return at_ < bytes_.size() || in_paste_; }
    // Call when no byte came for about 200 ms: a lone ESC is then the Escape key, and a Ctrl-C at the end of an
    // unfinished paste cancels the paste. (A Ctrl-C that is followed by more bytes is part of the pasted text.)
    std::optional<Key> expire();

  private:
    Key take(size_t bytes, Key key);
    std::optional<Key> next_paste();
    std::optional<Key> next_escape();
    std::optional<Key> next_text();

    std::string bytes_;
    size_t at_ = 0;
    bool in_paste_ = false;
    size_t searched_ = 0;  // up to here, bytes_ does not contain the end of the paste
};

}  // namespace runnel::commands
