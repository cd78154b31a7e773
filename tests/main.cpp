// The test runner. Tests that need the shared data folder look for it beside the checkout
// (tests/support/data.h) and are skipped without it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <string_view>

#include "tests/support/mcp_server.h"

int main(int argc, char **argv) {
    // Tests start this program again as a server of tools.
    if (argc == 3 && std::string_view(argv[1]) == "--mcp-server") return runnel::testing::mcp_server(argv[2]);
    return doctest::Context(argc, argv).run();
}
