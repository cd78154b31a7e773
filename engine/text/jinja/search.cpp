#include "engine/text/jinja/search.h"

#include <cstring>
#include <string>

namespace runnel::text::jinja {

size_t find(std::string_view text, std::string_view needle, size_t from) {
    if (from > text.size() || needle.size() > text.size() - from) return kNotFound;
    if (needle.empty()) return from;
    const void *found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
    return found ? static_cast<size_t>(static_cast<const char *>(found) - text.data()) : kNotFound;
}

size_t find_last(std::string_view text, std::string_view needle) {
    const std::string backwards(text.rbegin(), text.rend()), wanted(needle.rbegin(), needle.rend());
    const size_t found = find(backwards, wanted);
    return found == kNotFound ? kNotFound : text.size() - found - needle.size();
}

}  // namespace runnel::text::jinja
