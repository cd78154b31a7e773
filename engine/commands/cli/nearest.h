// Near misses: what a mistyped word most likely means.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace runnel::commands {

// Insertions, deletions, replacements and swaps of neighbors that lead from one word to the other
// (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate of the smallest distance, the first among equals; nullopt when even that one is too far away
// for a slip of the fingers: more than 1 for words of up to 3 letters, 2 up to 7, else 3.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean X?", or nothing.
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace runnel::commands
