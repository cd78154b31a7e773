// The folder of shared test data beside the checkout. Tests that need it are skipped if it is
// absent.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace runnel::testing {

inline std::filesystem::path shared_data() {
    return "../shared/data";
}

inline bool has_shared_data(const std::filesystem::path &name) {
    return std::filesystem::exists(shared_data() / name);
}

inline std::string read_file(const std::filesystem::path &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace runnel::testing
