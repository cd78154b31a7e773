// Substring search in linear time for any texts (memmem's two-way search).
#pragma once

#include <cstddef>
#include <string_view>

namespace runnel::text::jinja {

inline constexpr size_t kNotFound = static_cast<size_t>(-1);

// The first match at or after `from`; an empty needle matches at once. kNotFound if there is none.
size_t find(std::string_view text, std::string_view needle, size_t from = 0);
// The last match.
size_t find_last(std::string_view text, std::string_view needle);

}  // namespace runnel::text::jinja
