// Reads untrusted text from the left; the pieces of the formats' marks and of JSON.
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

    // Also true where there is none.
    bool skip_space();
    // The text here, as it stands.
    bool take(std::string_view text);
    // The words of a mark, with any whitespace before and between them. Moves only when it returns true.
    bool take_mark(std::string_view mark);
    // The mark, or its first words and the end of the text.
    bool take_end_mark(std::string_view mark);
    // The text up to `mark`, which is left; nothing where it does not follow.
    std::optional<std::string_view> until(std::string_view mark);
    // A tool's name; may be empty.
    std::string_view take_name();
    // A JSON object or array that begins here, as far as its brackets and strings show; nothing where it does
    // not begin here or does not end.
    std::optional<std::string_view> take_json();

  private:
    std::string_view text_;
    size_t at_;
};

}  // namespace runnel::text
