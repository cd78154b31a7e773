// The corpora of the fuzzers, seeds and former findings, as tests.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"
#include "tests/support/damage.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;

namespace {

std::vector<std::filesystem::path> corpus_of(std::string_view name) {
    std::vector<std::filesystem::path> files;
    for (const auto &entry :
         std::filesystem::directory_iterator(std::filesystem::path("tests/fuzz/corpus") / name))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

fuzz::Input input_of(const std::vector<std::byte> &bytes) {
    return {reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("fuzz: every target holds its property on its corpus, and on damaged copies") {
    for (const fuzz::Target &target : fuzz::kTargets) {
        CAPTURE(target.name);
        const auto files = corpus_of(target.name);
        CHECK(!files.empty());
        for (const auto &file : files) {
            CAPTURE(file.string());
            const std::vector<std::byte> whole = testing::read_bytes(file);
            CHECK_NOTHROW(target.run(input_of(whole)));
            for (uint64_t seed = 0; seed < 20; ++seed) {
                CAPTURE(seed);
                testing::Random random(seed);
                std::vector<std::byte> bytes = whole;
                testing::mutate(bytes, random);
                CHECK_NOTHROW(target.run(input_of(bytes)));
            }
        }
        CHECK_NOTHROW(target.run({}));
    }
}

TEST_CASE("fuzz: a property that does not hold is an exception") {
    CHECK_THROWS_AS(fuzz::require(false, "a property"), fuzz::Broken);
    CHECK_NOTHROW(fuzz::require(true, "a property"));
}
