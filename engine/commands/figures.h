// Numbers as text, for tables and progress lines.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace runnel::commands {

// As std::snprintf; the result is cut after 319 bytes.
template <class... Values>
std::string format(const char *how, Values... values) {
    char text[320];
    std::snprintf(text, sizeof text, how, values...);
    return text;
}

// "4.12 GiB", "12.0 MiB", "3.2 KiB". `decimals` applies to GiB.
std::string size_text(uint64_t bytes, int decimals = 2);

// "1:20", "1:02:03"; rounded up to whole seconds.
std::string duration_text(double seconds);

// "[#####-----]  50%  ". `done`: in [0, 1].
std::string progress_bar(double done);

}  // namespace runnel::commands
