// A terminal in memory, as far as the line editor and the answers of a chat use one: what its screen shows after the
// bytes it was given. Written from the description of ECMA-48, not from the code under test.
#pragma once

#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::testing {

class TerminalModel {
  public:
    TerminalModel(int columns, int rows) : columns_(columns), rows_(rows), lines_(1) {}

    void feed(std::string_view bytes) {
        pending_ += bytes;
        size_t at = 0;
        while (at < pending_.size()) {
            const size_t used = one(std::string_view(pending_).substr(at));
            if (used == 0) break;
            at += used;
        }
        pending_.erase(0, at);
    }

    // All lines since the beginning, without blanks at their ends.
    std::vector<std::string> lines() const {
        std::vector<std::string> all;
        for (const Line &line : lines_) {
            std::string text;
            for (const std::string &cell : line) text += cell;
            while (text.ends_with(' ')) text.pop_back();
            all.push_back(text);
        }
        return all;
    }
    std::string text() const {
        std::string all;
        for (const std::string &line : lines()) all += line + "\n";
        while (all.ends_with("\n\n")) all.pop_back();
        return all;
    }
    size_t row() const { return row_; }  // of the cursor, in lines()
    int column() const { return column_; }
    int unknown() const {
        return unknown_;
    }  // control characters and sequences that this model does not know
    bool wraps() const { return wraps_; }

    // Changes the size; folds lines that become too long, as most terminals do.
    void resize(int columns, int rows) {
        std::vector<Line> folded;
        size_t row = 0;
        int column = column_;
        for (size_t i = 0; i < lines_.size(); ++i) {
            const size_t begin = folded.size();
            Line rest = lines_[i];
            do {
                const size_t cells = std::min(rest.size(), static_cast<size_t>(columns));
                folded.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(cells));
                rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(cells));
            } while (!rest.empty());
            if (i != row_) continue;
            row = begin + static_cast<size_t>(column_ / columns);
            column = column_ % columns;
            while (folded.size() <= row) folded.emplace_back();
        }
        columns_ = columns, rows_ = rows;
        lines_ = std::move(folded);
        row_ = row, column_ = column;
        top_ = std::max(
            top_, lines_.size() > static_cast<size_t>(rows) ? lines_.size() - static_cast<size_t>(rows) : 0);
        top_ = std::min(top_, row_);
    }

  private:
    using Line = std::vector<std::string>;  // a cell each; the second of a wide character is ""

    // Processes one character or sequence. Returns the bytes used; 0 if more are needed.
    size_t one(std::string_view rest) {
        if (rest[0] == '\x1b') return escape(rest);
        if (rest[0] == '\r') return column_ = 0, full_ = false, 1;
        if (rest[0] == '\n') return column_ = 0, line_feed(), 1;
        if (rest[0] == '\b') return column_ = std::max(column_ - 1, 0), full_ = false, 1;
        if (static_cast<unsigned char>(rest[0]) < ' ' || rest[0] == '\x7f') return ++unknown_, 1;
        utf8proc_int32_t c = 0;
        const auto bytes = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t *>(rest.data()),
                                            static_cast<utf8proc_ssize_t>(rest.size()), &c);
        if (bytes <= 0) return rest.size() < 4 ? 0 : (++unknown_, 1);
        put(rest.substr(0, static_cast<size_t>(bytes)), utf8proc_charwidth(c));
        return static_cast<size_t>(bytes);
    }

    size_t escape(std::string_view rest) {
        if (rest.size() < 2) return 0;
        if (rest[1] != '[') return ++unknown_, 2;
        size_t end = 2;
        while (end < rest.size() && (rest[end] < '@' || rest[end] > '~')) ++end;
        if (end == rest.size()) return 0;
        const std::string parameters(rest.substr(2, end - 2));
        const bool is_private = parameters.starts_with('?');
        const int number = is_private || parameters.empty() ? 1 : std::max(1, std::atoi(parameters.c_str()));
        full_ = full_ && rest[end] == 'm';
        switch (rest[end]) {
            case 'A':
                row_ -= std::min(row_ - top_, static_cast<size_t>(number));
                break;
            case 'C':
                column_ = std::min(column_ + number, columns_ - 1);
                break;
            case 'J':
                if (parameters == "2") {
                    for (size_t i = top_; i < lines_.size(); ++i) lines_[i].clear();
                } else {
                    lines_.resize(row_ + 1);
                    erase_line();
                }
                break;
            case 'K':
                erase_line();
                break;
            case 'H':
                row_ = top_, column_ = 0;
                break;
            case 'h':
            case 'l':
                if (parameters == "?7") wraps_ = rest[end] == 'h';
                if (!is_private) ++unknown_;
                break;
            case 'm':
                break;
            default:
                ++unknown_;
        }
        return end + 1;
    }

    void erase_line() {
        Line &line = lines_[row_];
        if (line.size() > static_cast<size_t>(column_)) line.resize(static_cast<size_t>(column_));
    }
    void line_feed() {
        full_ = false;
        ++row_;
        if (row_ == lines_.size()) lines_.emplace_back();
        if (row_ - top_ >= static_cast<size_t>(rows_)) ++top_;
    }
    void put(std::string_view character, int width) {
        Line &line = lines_[row_];
        const auto at = static_cast<size_t>(column_);
        if (width == 0) {  // joins the cell before
            const size_t before = full_ ? at : at - std::min<size_t>(at, 1);
            for (size_t i = before + 1; i-- > 0;)
                if (i < line.size() && !line[i].empty()) {
                    line[i] += character;
                    break;
                }
            return;
        }
        if (full_ || column_ + width > columns_) {
            if (wraps_) {
                column_ = 0;
                line_feed();
                return put(character, width);
            }
            column_ = columns_ - width;
        }
        const auto begin = static_cast<size_t>(column_);
        if (line.size() < begin + static_cast<size_t>(width))
            line.resize(begin + static_cast<size_t>(width), " ");
        line[begin] = character;
        if (width == 2) line[begin + 1].clear();
        column_ += width;
        full_ = column_ == columns_;
        if (full_) --column_;
    }

    int columns_, rows_;
    std::vector<Line> lines_;
    size_t row_ = 0, top_ = 0;
    int column_ = 0;
    bool full_ = false;  // the last cell is written: the next character wraps
    bool wraps_ = true;
    int unknown_ = 0;
    std::string pending_;
};

}  // namespace runnel::testing
