// Shows a text being edited: lays it out in rows for the terminal's width, and computes the bytes that draw
// the rows; does no I/O. Moves the cursor only relatively, so that the lines above remain.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/chat/edit/edit_text.h"

namespace runnel::commands {

struct WindowSize {
    int columns = 80, rows = 24;
};

struct EditLayout {
    struct Stop {  // where the cursor can stand
        int column;
        size_t offset;  // in the text
    };
    struct Row {
        std::string shown;
        int width = 0;
        std::vector<Stop> stops;
    };
    std::vector<Row> rows;
    size_t cursor_row = 0;
    int cursor_column = 0;

    // The offset in the text at this row, at the last stop up to this column.
    size_t offset_at(size_t row, int column) const;
};

// Rows of at most `columns` cells: `prompt` (printable), then the text, with "... " before every line of it
// but the first. A prompt that leaves fewer than 10 cells is left out.
EditLayout lay_out(std::string_view prompt, const EditText &text, int columns);
bool has_room_for(std::string_view prompt, int columns);  // whether it is not left out

class EditScreen {
  public:
    // Shows as many rows as fit, including the cursor's, in place of the rows shown before.
    std::string paint(const EditLayout &layout, WindowSize size);
    // Shows all rows a last time; the cursor moves to the beginning of the line below them.
    std::string finish(const EditLayout &layout);
    // Removes the rows shown; the cursor stays where the first one began.
    std::string clear();
    // Call when the window's width has changed: the terminal has then wrapped the rows that are too long.
    void resized(int columns);

  private:
    std::string to_top();

    std::vector<int> widths_;  // of the rows shown
    size_t above_ = 0;         // terminal rows drawn by this screen above the cursor's row
    size_t first_ = 0;         // row of the layout that is shown first
    size_t cursor_row_ = 0;    // index in widths_
    int cursor_column_ = 0;
};

}  // namespace runnel::commands
