// Makes text from outside (file names, metadata keys, tensor names) safe for a one-line message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace runnel::gguf {

// `text` with everything that could disturb a terminal or a log line replaced by \xNN: control characters,
// bytes that are not well-formed UTF-8, line separators and bidirectional controls. Cut after about `most`
// bytes, marked with "...".
std::string printable(std::string_view text, size_t most = 80);

// A key or name from a file, in single quotes. The specification allows ASCII only, so everything else is
// replaced by \xNN, too. Cut after about 80 bytes.
std::string quoted(std::string_view text);

}  // namespace runnel::gguf
