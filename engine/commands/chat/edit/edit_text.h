// A text being edited: a cursor that moves by grapheme clusters, words and lines, and long pasted parts that appear
// and are erased as one ("chips").
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

class EditText {
  public:
    struct Chip {
        size_t begin, end;  // bytes of text()
        std::string label;  // "[pasted 3,412 lines]"
    };
    // More lines or bytes than this are inserted as a chip.
    static constexpr size_t kChipLines = 10, kChipBytes = 2000;

    const std::string &text() const { return text_; }
    size_t cursor() const { return cursor_; }
    const std::vector<Chip> &chips() const { return chips_; }
    bool empty() const { return text_.empty(); }

    // Replaces the whole text; the cursor moves to the end. Precondition here and in insert(): the text is a result
    // of clean_text().
    void set(std::string text);
    // Inserts at the cursor, which moves to the end of the insertion.
    void insert(std::string_view typed);
    void paste(std::string_view text);
    void set_cursor(size_t at) { cursor_ = at; }  // at a boundary

    // The next boundary of a cluster or chip before or after the boundary `at`, or the end of the text there.
    size_t before(size_t at) const;
    size_t behind(size_t at) const;
    size_t word_before(size_t at) const;
    size_t word_behind(size_t at) const;
    // Beginning and end of the line that holds the boundary `at`; newlines within chips do not count.
    size_t line_begin(size_t at) const;
    size_t line_end(size_t at) const;

    // Removes the text between two boundaries and returns it; the cursor moves to `begin`.
    std::string erase(size_t begin, size_t end);

  private:
    const Chip *chip_ending_at(size_t at) const;
    const Chip *chip_beginning_at(size_t at) const;

    std::string text_;
    size_t cursor_ = 0;
    std::vector<Chip> chips_;  // in order
};

}  // namespace runnel::commands
