#include "engine/commands/chat/edit/edit_screen.h"

#include <algorithm>

#include "engine/commands/chat/edit/cells.h"

namespace runnel::commands {
namespace {

constexpr int kTab = 8;
constexpr std::string_view kFurther = "... ";
// Automatic wrapping is off, so that the number of rows is right even if the terminal shows some characters
// in other widths.
constexpr std::string_view kBegin = "\x1b[?25l\x1b[?7l", kEnd = "\x1b[?7h\x1b[?25h";

class LayoutMaker {
  public:
    LayoutMaker(std::string_view prompt, const EditText &text, int columns)
        : text_(text), columns_(std::max(columns, 2)) {
        begin_row(has_room_for(prompt, columns_) ? prompt : "");
    }

    EditLayout make() {
        const std::string &all = text_.text();
        auto chip = text_.chips().begin();
        for (size_t at = 0; at < all.size();) {
            if (chip != text_.chips().end() && chip->begin == at) {
                put(chip->label, at);
                at = chip++->end;
                continue;
            }
            stop(at);
            if (all[at] == '\n') {
                begin_row(has_room_for(kFurther, columns_) ? kFurther : "");
                ++at;
                continue;
            }
            const size_t end = text_.behind(at);
            put_grapheme(std::string_view(all).substr(at, end - at), at);
            at = end;
        }
        stop(all.size());
        return std::move(layout_);
    }

  private:
    EditLayout::Row &row() { return layout_.rows.back(); }
    void begin_row(std::string_view prefix) {
        layout_.rows.push_back({std::string(prefix), text_width(prefix), {}});
    }
    // Marks a place where the cursor can stand. A place behind the last cell of a row begins the next row.
    void stop(size_t offset) {
        if (row().width >= columns_) begin_row("");
        row().stops.push_back({row().width, offset});
        if (offset != text_.cursor()) return;
        layout_.cursor_row = layout_.rows.size() - 1;
        layout_.cursor_column = row().width;
    }
    void put(std::string_view label, size_t offset) {
        stop(offset);
        for (const char c : label) put_cells(std::string_view(&c, 1), 1);
    }
    void put_grapheme(std::string_view grapheme, size_t offset) {
        if (grapheme == "\t") {
            const int cells = kTab - row().width % kTab;
            for (int i = 0; i < cells && (i == 0 || row().width < columns_); ++i) put_cells(" ", 1);
            return;
        }
        const std::string shown = shown_grapheme(grapheme);
        const size_t rows = layout_.rows.size();
        if (shown == grapheme)
            put_cells(shown, grapheme_width(shown));
        else
            for (std::string_view rest = shown; !rest.empty();) {
                const size_t bytes = first_grapheme(rest);
                put_cells(rest.substr(0, bytes), grapheme_width(rest.substr(0, bytes)));
                rest.remove_prefix(bytes);
            }
        if (layout_.rows.size() == rows || row().stops.size() > 0) return;
        move_stop(offset);
    }
    void put_cells(std::string_view shown, int width) {
        if (row().width + width > columns_) begin_row("");
        row().shown += shown;
        row().width += width;
    }
    // When a cluster of two cells moves to the next row, the cursor's place before it moves, too.
    void move_stop(size_t offset) {
        auto &stops = layout_.rows[layout_.rows.size() - 2].stops;
        if (stops.empty() || stops.back().offset != offset) return;
        stops.pop_back();
        row().stops.push_back({0, offset});
        if (offset != text_.cursor()) return;
        layout_.cursor_row = layout_.rows.size() - 1;
        layout_.cursor_column = 0;
    }

    const EditText &text_;
    int columns_;
    EditLayout layout_;
};

void move(std::string &out, size_t count, char direction) {
    if (count > 0) out += "\x1b[" + std::to_string(count) + direction;
}

}  // namespace

size_t EditLayout::offset_at(size_t row, int column) const {
    const std::vector<Stop> &stops = rows[row].stops;
    size_t offset = stops.empty() ? 0 : stops.front().offset;
    for (const Stop &stop : stops)
        if (stop.column <= column) offset = stop.offset;
    return offset;
}

bool has_room_for(std::string_view prompt, int columns) {
    return text_width(prompt) + 10 <= columns;
}

EditLayout lay_out(std::string_view prompt, const EditText &text, int columns) {
    return LayoutMaker(prompt, text, columns).make();
}

std::string EditScreen::to_top() {
    std::string out = "\r";
    move(out, above_, 'A');
    return out + "\x1b[J";
}

std::string EditScreen::paint(const EditLayout &layout, WindowSize size) {
    const size_t height = static_cast<size_t>(std::max(size.rows, 1));
    first_ = std::min(first_, layout.cursor_row);
    if (layout.cursor_row >= first_ + height) first_ = layout.cursor_row - height + 1;
    if (layout.rows.size() < first_ + height)
        first_ = layout.rows.size() - std::min(layout.rows.size(), height);
    const size_t end = std::min(layout.rows.size(), first_ + height);
    std::string out = std::string(kBegin) + to_top();
    widths_.clear();
    for (size_t i = first_; i < end; ++i) {
        out += (i > first_ ? "\r\n" : "") + layout.rows[i].shown;
        widths_.push_back(layout.rows[i].width);
    }
    cursor_row_ = above_ = layout.cursor_row - first_;
    cursor_column_ = layout.cursor_column;
    move(out, end - 1 - layout.cursor_row, 'A');
    out += '\r';
    move(out, static_cast<size_t>(cursor_column_), 'C');
    return out + std::string(kEnd);
}

std::string EditScreen::finish(const EditLayout &layout) {
    std::string out = std::string(kBegin) + to_top();
    for (const EditLayout::Row &row : layout.rows) out += row.shown + "\r\n";
    *this = EditScreen();
    return out + std::string(kEnd);
}

std::string EditScreen::clear() {
    const std::string out = to_top();
    *this = EditScreen();
    return out;
}

void EditScreen::resized(int columns) {
    const auto folds = [&](int width) {
        return static_cast<size_t>(std::max(width - 1, 0) / std::max(columns, 1));
    };
    above_ = cursor_row_ + folds(cursor_column_ + 1);
    for (size_t i = 0; i < cursor_row_ && i < widths_.size(); ++i) above_ += folds(widths_[i]);
}

}  // namespace runnel::commands
