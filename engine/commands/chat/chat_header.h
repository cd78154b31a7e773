// The first line of a chat at a terminal: which model answers, and where it runs.
#pragma once

#include <cstdint>
#include <string>

#include "engine/decode/engine.h"

namespace runnel::commands {

struct ChatHeader {
    std::string name;  // printable
    std::string type;  // of the weights, such as "Q4_K_M"
    uint64_t bytes;    // of the weights
    std::string placement;
    int64_t context;
};
ChatHeader header_of(decode::Engine &engine);

// "Qwen3 8B  Q8_0  8.1 GiB  on the GPU  context 40,960  /help for help" in one line of at most `columns` cells. In a
// narrow window, a long name is cut first; then parts are left out from the right, but the context only before the
// type, which is the last.
std::string header_line(const ChatHeader &header, int columns, bool colors);

}  // namespace runnel::commands
