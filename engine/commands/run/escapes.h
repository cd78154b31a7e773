// Escape sequences in a prompt of the command line.
#pragma once

#include <string>
#include <string_view>

namespace runnel::commands {

// \n, \t, \r, \\, \', \" and \xHH become the characters they stand for, as printf(1) has it. Other backslashes
// stay as they are.
std::string without_escapes(std::string_view text);

}  // namespace runnel::commands
