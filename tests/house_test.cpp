// The rules of the house, so that a plain `make test` finds a wrong include.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

TEST_CASE("house: includes run one way") {
    if (!std::filesystem::exists("scripts/check-includes")) {
        FAIL("tests run from the root of the sources");
        return;
    }
    CHECK(std::system("scripts/check-includes >&2") == 0);
}
