// Lays out an answer for a terminal while it streams: breaks lines between words and, with `styled`, shows light
// Markdown. The result is the same however the text is cut into pieces.
#pragma once

#include <string>
#include <string_view>

namespace runnel::commands {

class TerminalText {
  public:
    // `columns`: of the window. `styled`: **bold** and headings appear bold without their marks, the fences of code
    // as dim rules. Lines of code and of tables are never broken, further lines of a list item are indented.
    TerminalText(int columns, bool styled) : columns_(columns < 2 ? 2 : columns), styled_(styled) {}

    // Returns the text to write next. `text`: whole UTF-8 characters without control sequences
    // (printable_for_terminal). The last word is held back until it ends, and text after ** until the next ** of the
    // line.
    std::string push(std::string_view text);
    // Returns the rest of the text, and the sequences that end styles.
    std::string finish();
    // The written part of the line in progress, to write it again after the output of other programs.
    const std::string &line() const { return line_; }
    // Sets the width of the lines that follow.
    void set_columns(int columns);

  private:
    enum class Kind { Unknown, Text, Verbatim, Fence };  // of the line; Verbatim: a table, or code

    std::string take_out();
    void next(std::string_view character);
    void begin_line(std::string_view character);
    // Decides what kind of line begins with head_.
    Kind kind_of_head(bool whole);
    void put_fence();
    void end_line();
    void consume(bool whole);
    void put(std::string_view character);
    void put_all(std::string_view text);
    void put_word();
    void set_bold(bool bold);

    int columns_;
    bool styled_;
    std::string out_, line_;
    Kind kind_ = Kind::Unknown;
    std::string head_;    // of a line of unknown kind
    std::string inline_;  // not yet searched for marks
    std::string word_;
    int column_ = 0, spaces_ = 0, hang_ = 0;  // hang_: where further lines of the item begin
    bool in_code_ = false;                    // between ` and ` of a line
    bool in_fence_ = false;                   // between ``` and ```
    bool heading_ = false, bold_ = false;
    char before_ = ' ';  // the character before inline_
};

}  // namespace runnel::commands
