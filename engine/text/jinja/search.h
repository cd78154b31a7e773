// Finding text in text, in linear time whatever the texts are (memmem's two-way search).
#pragma once

#include <cstddef>
#include <string_view>

namespace runnel::text::jinja {

inline constexpr size_t kNotFound = static_cast<size_t>(-1);

// First place at or behind `from`; an empty needle is found at once. kNotFound when there is none.
size_t find(std::string_view text, std::string_view needle, size_t from = 0);
// Last place.
size_t find_last(std::string_view text, std::string_view needle);

}  // namespace runnel::text::jinja
