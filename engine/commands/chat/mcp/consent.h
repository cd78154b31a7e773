// The text of the question whether a call may run. It contains text from the model, which must neither hide a part of
// the call nor look like lines that the program wrote.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace runnel::commands::mcp {

// A text in one line of visible characters. A run of blanks, newlines and tabs is one blank if it is a blank, otherwise
// "<3 blanks>". Control characters, characters without ink, directional controls and the third combining mark in a row
// become <U+00AD>; invalid bytes become <0xFF>.
std::string visible(std::string_view text);

struct CallText {
    std::string name;   // "server: tool"
    std::string lines;  // the name and the arguments, in rows that begin with "  | "
    bool is_whole;      // false: the end of the arguments is not shown
};
// Rows are at most `columns` cells wide.
CallText call_text(std::string_view server, std::string_view tool, std::string_view arguments, int columns);

}  // namespace runnel::commands::mcp
