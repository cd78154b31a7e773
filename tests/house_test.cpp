// The rules of the house, so that a plain `make test` finds a wrong include.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

TEST_CASE("house: includes run one way") {
    if (!std::filesystem::exists("scripts/check-includes")) {
        FAIL("tests run from the root of the sources");
        return;
    }
    CHECK(std::system("scripts/check-includes >&2") == 0);
}

// nlohmann's own parser is neither linear nor bounded.
TEST_CASE("house: JSON is parsed in one place") {
    namespace fs = std::filesystem;
    if (!fs::exists("scripts/check-includes")) {
        MESSAGE("not run from the root of the sources: skipped");
        return;
    }
    const std::regex parses(R"((json::(parse|accept|from_\w+)|sax_parse)\s*\()", std::regex::icase);
    size_t files = 0;
    for (const char *room : {"gguf", "kernels", "engine", "main.cpp"}) {
        std::vector<fs::path> paths{room};
        if (fs::is_directory(room))
            for (const auto &entry : fs::recursive_directory_iterator(room)) paths.push_back(entry.path());
        for (const fs::path &path : paths) {
            if (!fs::is_regular_file(path) || path == "engine/text/json.cpp") continue;
            std::ifstream in(path, std::ios::binary);
            const std::string text{std::istreambuf_iterator<char>(in), {}};
            CAPTURE(path.string());
            CHECK(!std::regex_search(text, parses));
            ++files;
        }
    }
    CHECK(files > 100);
}
