// The first line of a chat at windows of all widths.
#include "engine/commands/chat/chat_header.h"

#include <doctest/doctest.h>

#include <string>

#include "engine/commands/chat/edit/cells.h"

using namespace runnel::commands;

TEST_CASE("chat header: one line shows name, type, size, placement and context") {
    const ChatHeader header{"Qwen3 8B", "Q4_K_M", 5'027'783'488, "all layers on the GPU", 40960};
    CHECK(header_line(header, 80, false) ==
          "Qwen3 8B  Q4_K_M  4.7 GiB  on the GPU  context 40,960  /help for help");
    CHECK(header_line(header, 60, false) == "Qwen3 8B  Q4_K_M  4.7 GiB  on the GPU  context 40,960");
    CHECK(header_line(header, 45, false) == "Qwen3 8B  Q4_K_M  4.7 GiB  context 40,960");
    CHECK(header_line(header, 32, false) == "Qwen3 8B  Q4_K_M  context 40,960");
    CHECK(header_line(header, 20, false) == "Qwen3 8B  Q4_K_M");
    CHECK(header_line(header, 14, false) == "Qwe...  Q4_K_M");
    CHECK(header_line(header, 80, true) ==
          "\x1b[1mQwen3 8B\x1b[22;2m  Q4_K_M  4.7 GiB  on the GPU  context 40,960  /help for help\x1b[0m");
}

TEST_CASE("chat header: fits every window, whatever the name and the placement") {
    for (const char *name : {"x", "A model with a very long name that someone wrote as a sentence, of 7B",
                             "\u4e2d\u6587\u6a21\u578b\u4e2d\u6587\u6a21\u578b\u4e2d\u6587\u6a21\u578b"})
        for (const char *placement :
             {"all layers on the CPU", "20 of 33 layers on the GPU, the others on the CPU",
              "all layers on the GPU, experts of the first 3 layers on the CPU"})
            for (int columns = 20; columns <= 120; ++columns) {
                CAPTURE(columns);
                const std::string line =
                    header_line({name, "Q4_K_M", 123'456, placement, 1'048'576}, columns, false);
                CHECK(text_width(line) <= columns);
                CHECK(line.find("Q4_K_M") != std::string::npos);
                if (columns >= 60) CHECK(line.find("context 1,048,576") != std::string::npos);
            }
}
