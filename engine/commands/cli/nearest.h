// Suggestions for mistyped words.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace runnel::commands {

// Number of insertions, deletions, replacements and swaps of adjacent letters that turn one word into the
// other (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest distance, the first among equals. nullopt if it is too far away for a
// typing error: more than 1 for words of up to 3 letters, 2 up to 7, else 3.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean X?", or nothing.
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

}  // namespace runnel::commands
