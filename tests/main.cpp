// The test runner. Tests that need the shared data folder look for it beside the checkout
// (tests/support/data.h) and are skipped without it.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
