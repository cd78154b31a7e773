// Elements of SVG pictures.
#pragma once

#include <string>

#include "engine/commands/io.h"

namespace runnel::commands {

// Text inside an element or an attribute: escaped, with \xNN for control characters,
// bidirectional controls and invalid UTF-8 (gguf/printable.h).
std::string svg_escaped(const std::string &text);
// A number with one decimal.
std::string svg_number(double value);
// The beginning of a document of this size with a white ground; it ends with "</svg>\n".
std::string svg_begin(double width, double height);
// `anchor`: "start", "middle" or "end". `more`: further attributes, with a leading blank.
std::string svg_text(double x, double y, const char *anchor, const std::string &text,
                     const std::string &more = "");
std::string svg_rectangle(double x, double y, double width, double height, const std::string &fill,
                          const std::string &more = "");

// Call before the computation: throws gguf::OutputRefused if the file must not be written, and UsageError if its name
// does not end with .svg. `option`: for the message.
void check_svg_file(const std::string &path, const std::string &option, const Io &io);
// Throws gguf::WriteError.
void write_svg_file(const std::string &path, const std::string &svg, const Io &io);

}  // namespace runnel::commands
