#include "engine/commands/chat/terminal_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

#include "engine/commands/chat/edit/cells.h"
#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

constexpr size_t kLongestWord = 1000, kLongestBold = 300, kLongestHead = 40;
constexpr std::string_view kFence = "```", kBold = "**";
constexpr std::string_view kBoldOn = "\x1b[1m", kBoldOff = "\x1b[22m";

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

uint32_t last_char(std::string_view text) {
    size_t at = text.size();
    while (at > 0 && (static_cast<unsigned char>(text[--at]) & 0xC0) == 0x80) {
    }
    return text::first_char(text.substr(at)).code_point;
}

// Whether a line may break between a word and a character without a blank: beside wide characters, but not
// within a cluster or before a closing mark.
bool breaks_before(std::string_view word, uint32_t c) {
    const uint32_t last = last_char(word);
    const auto width = [](uint32_t one) { return utf8proc_charwidth(static_cast<utf8proc_int32_t>(one)); };
    const bool joined = last == 0x200D || (c >= 0x1F1E6 && c <= 0x1F1FF) || (c >= 0x1F3FB && c <= 0x1F3FF);
    const bool closing = (c >= 0x3001 && c <= 0x3002) || c == 0x300D || c == 0x300F || c == 0xFF01 ||
                         c == 0xFF09 || c == 0xFF0C || c == 0xFF1A || c == 0xFF1B || c == 0xFF1F;
    return !joined && !closing && width(c) > 0 && (width(last) == 2 || width(c) == 2) && c >= 0x80;
}

}  // namespace

std::string TerminalText::push(std::string_view text) {
    while (!text.empty()) {
        const text::Utf8Char c = text::first_char(text);
        next(text.substr(0, c.bytes));
        text.remove_prefix(c.bytes);
    }
    return take_out();
}

std::string TerminalText::finish() {
    if (kind_ == Kind::Unknown && !head_.empty()) begin_line("");
    put_fence();
    consume(true);
    put_word();
    set_bold(false);
    return take_out();
}

std::string TerminalText::take_out() {
    line_ += out_;
    if (const size_t newline = line_.rfind('\n'); newline != std::string::npos) {
        // Bold text may have begun in an earlier line.
        const size_t bold = line_.rfind(kBoldOn, newline), end = line_.rfind(kBoldOff, newline);
        const bool is_bold = bold != std::string::npos && (end == std::string::npos || end < bold);
        line_.replace(0, newline + 1, is_bold ? kBoldOn : "");
    }
    return std::exchange(out_, {});
}

void TerminalText::set_columns(int columns) {
    columns_ = std::max(columns, 2);
    if (column_ > columns_) column_ = (column_ - 1) % columns_ + 1;  // the terminal folds the line
    hang_ = hang_ < columns_ / 2 ? hang_ : 0;
}

void TerminalText::next(std::string_view character) {
    if (character == "\n") return end_line();
    if (kind_ == Kind::Unknown) return begin_line(character);
    if (kind_ == Kind::Verbatim) {
        out_ += character;
    } else if (kind_ == Kind::Fence) {
        head_ += character;
    } else {
        inline_ += character;
        consume(false);
    }
}

void TerminalText::begin_line(std::string_view character) {
    head_ += character;
    kind_ = kind_of_head(character.empty());
    if (kind_ == Kind::Verbatim) {
        out_ += head_;
    } else if (kind_ == Kind::Text) {
        // Write indentation and list marker as they are: a "*" there does not begin bold text.
        const size_t literal = std::min(static_cast<size_t>(hang_), head_.size());
        for (size_t i = 0; i < literal; ++i) put(head_.substr(i, 1));
        inline_ = head_.substr(literal);
        if (heading_) {
            inline_.erase(0, inline_.find_first_not_of("# "));
            set_bold(true);
        }
    } else {
        return;
    }
    head_.clear();
    consume(false);
}

TerminalText::Kind TerminalText::kind_of_head(bool whole) {
    const size_t blanks = std::min(head_.find_first_not_of(' '), head_.size());
    const std::string_view rest = std::string_view(head_).substr(blanks);
    const bool long_enough = whole || head_.size() >= kLongestHead;
    hang_ = static_cast<int>(blanks) < columns_ / 2 ? static_cast<int>(blanks) : 0;
    heading_ = false;
    if (in_fence_ || rest.starts_with('`')) {
        const size_t ticks = std::min(rest.find_first_not_of('`'), rest.size());
        const bool fence = styled_ && ticks >= kFence.size() && blanks <= 3;
        if (in_fence_) {
            const bool only_ticks = rest.find_first_not_of("` ") == std::string_view::npos;
            if (fence && only_ticks && whole) return Kind::Fence;
            return only_ticks && !long_enough ? Kind::Unknown : Kind::Verbatim;
        }
        if (fence) return Kind::Fence;
        return styled_ && ticks == rest.size() && !long_enough ? Kind::Unknown : Kind::Text;
    }
    if (rest.empty()) return long_enough ? Kind::Text : Kind::Unknown;
    if (rest[0] == '|') return Kind::Verbatim;
    if (rest[0] == '#') {
        const size_t marks = std::min(rest.find_first_not_of('#'), rest.size());
        if (marks == rest.size() && !long_enough) return Kind::Unknown;
        heading_ = styled_ && blanks == 0 && marks <= 6 && marks < rest.size() && rest[marks] == ' ';
        if (heading_) hang_ = 0;
        return Kind::Text;
    }
    // "- ", "* ", "+ ", "1. " or "1) ": a list.
    size_t mark = 0;
    if (is_digit(rest[0])) {
        while (mark < rest.size() && mark < 9 && is_digit(rest[mark])) ++mark;
        if (mark == rest.size() && !long_enough) return Kind::Unknown;
        if (mark == rest.size() || (rest[mark] != '.' && rest[mark] != ')')) return Kind::Text;
    } else if (rest[0] != '-' && rest[0] != '*' && rest[0] != '+') {
        return Kind::Text;
    }
    ++mark;
    if (mark == rest.size() && !long_enough) return Kind::Unknown;
    if (mark < rest.size() && rest[mark] == ' ') {
        const int width = static_cast<int>(blanks + mark + 1);
        if (width < columns_ / 2) hang_ = width;
    }
    return Kind::Text;
}

void TerminalText::put_fence() {
    if (kind_ != Kind::Fence) return;
    const size_t name = head_.find_first_not_of("` ");
    in_fence_ = !in_fence_;
    const std::string language =
        in_fence_ && name != std::string::npos ? " " + head_.substr(name) + " ──" : "";
    out_ += "\x1b[2m  ──" + language + "\x1b[22m";
    head_.clear();
    kind_ = Kind::Verbatim;
}

void TerminalText::end_line() {
    if (kind_ == Kind::Unknown) begin_line("");
    put_fence();
    consume(true);
    put_word();
    heading_ = false;
    set_bold(false);
    out_ += '\n';
    head_.clear();
    kind_ = Kind::Unknown;
    column_ = spaces_ = hang_ = 0;
    in_code_ = false;
    before_ = ' ';
}

// Moves text whose style is certain from inline_ to the words. `whole`: the line is complete.
void TerminalText::consume(bool whole) {
    while (!inline_.empty()) {
        const bool starred = styled_ && !in_code_ && inline_[0] == '*';
        if (starred && inline_.size() == 1 && !whole) return;
        if (starred && inline_.starts_with(kBold)) {
            if (inline_.size() == 2 && !whole) return;
            const bool opens = inline_.size() > 2 && inline_[2] != ' ' && inline_[2] != '*' &&
                               !std::isalnum(static_cast<unsigned char>(before_));
            const size_t end = opens ? inline_.find(kBold, 3) : std::string::npos;
            if (end != std::string::npos && inline_[end - 1] != ' ') {
                set_bold(true);
                put_all(std::string_view(inline_).substr(2, end - 2));
                put_word();
                set_bold(heading_);
                inline_.erase(0, end + 2);
                before_ = '*';
                continue;
            }
            if (opens && end == std::string::npos && !whole && inline_.size() < kLongestBold) return;
            put_all(kBold);
            inline_.erase(0, 2);
            continue;
        }
        const size_t bytes = text::first_char(inline_).bytes;
        put_all(std::string_view(inline_).substr(0, bytes));
        inline_.erase(0, bytes);
    }
}

void TerminalText::put_all(std::string_view text) {
    while (!text.empty()) {
        const size_t bytes = text::first_char(text).bytes;
        if (text[0] == '`') in_code_ = !in_code_;
        before_ = text[bytes - 1];
        put(text.substr(0, bytes));
        text.remove_prefix(bytes);
    }
}

void TerminalText::put(std::string_view character) {
    if (character == " " || character == "\t") {
        put_word();
        spaces_ += character == " " ? 1 : 4;
        return;
    }
    if (!word_.empty() &&
        (word_.size() > kLongestWord || breaks_before(word_, text::first_char(character).code_point)))
        put_word();
    word_ += character;
}

void TerminalText::put_word() {
    if (word_.empty()) return;
    const int width = text_width(word_);
    if (column_ > hang_ && column_ + spaces_ + width > columns_) {
        out_ += "\n" + std::string(static_cast<size_t>(hang_), ' ');
        column_ = hang_;
    } else {
        out_ += std::string(static_cast<size_t>(spaces_), ' ');
        column_ += spaces_;
    }
    spaces_ = 0;
    out_ += word_;
    column_ += width;
    if (column_ > columns_) column_ = (column_ - 1) % columns_ + 1;  // the terminal wrapped the word
    word_.clear();
}

void TerminalText::set_bold(bool bold) {
    if (!styled_ || bold == bold_) return;
    put_word();
    out_ += std::string(static_cast<size_t>(spaces_), ' ');
    column_ += spaces_;
    spaces_ = 0;
    out_ += bold ? kBoldOn : kBoldOff;
    bold_ = bold;
}

}  // namespace runnel::commands
