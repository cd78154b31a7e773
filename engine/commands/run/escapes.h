// Escape sequences in a prompt of the command line.
#pragma once

#include <string>
#include <string_view>

namespace runnel::commands {

// Replaces \n, \t, \r, \\, \', \" and \xHH with the characters they stand for, as printf(1) does. Other
// backslashes are kept.
std::string without_escapes(std::string_view text);

}  // namespace runnel::commands
