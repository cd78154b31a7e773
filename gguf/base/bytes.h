// Memory sizes as text.
#pragma once

#include <cstddef>
#include <string>

namespace runnel::base {

// "3 MiB", rounded up.
inline std::string mebibytes(size_t bytes) {
    return std::to_string((bytes + (size_t{1} << 20) - 1) >> 20) + " MiB";
}

}  // namespace runnel::base
