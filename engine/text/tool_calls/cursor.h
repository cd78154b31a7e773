// Reads untrusted text from left to right: marks of the formats, names and JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace runnel::text {

class Cursor {
  public:
    explicit Cursor(std::string_view text, size_t at = 0) : text_(text), at_(at) {}

    size_t at() const { return at_; }
    std::string_view rest() const { return text_.substr(at_); }
    bool done() const { return at_ >= text_.size(); }
    char peek() const { return done() ? '\0' : text_[at_]; }
    char next() { return done() ? '\0' : text_[at_++]; }
    void skip(size_t bytes) { at_ += bytes; }

    // Skips white space, if there is any. Always true, so that it can be part of a condition.
    bool skip_space();
    // Skips `text` if it follows exactly; otherwise returns false and does not move.
    bool take(std::string_view text);
    // Skips the words of `mark` and any white space before them; otherwise returns false and does not move.
    bool take_mark(std::string_view mark);
    // Like take_mark(), but the text may also end before any word of the mark.
    bool take_end_mark(std::string_view mark);
    // Returns the text before the next `mark` and moves to the mark; nullopt if there is none.
    std::optional<std::string_view> until(std::string_view mark);
    // Returns and skips a tool's name, which may be empty.
    std::string_view take_name();
    // Returns and skips a JSON object or array, whose end is found by its brackets and strings alone. nullopt
    // if none begins here or it has no end.
    std::optional<std::string_view> take_json();

  private:
    std::string_view text_;
    size_t at_;
};

}  // namespace runnel::text
