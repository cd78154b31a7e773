#include "tests/support/skip.h"

#include <cstdio>
#include <set>

#include "tests/support/listener.h"

namespace runnel::testing {
namespace {

std::string running;            // the current test case
std::set<std::string> skipped;  // names of cases

// Tracks the current test case, and reports at the end how many were skipped.
struct SkipListener : Listener {
    using Listener::Listener;
    void test_case_start(const doctest::TestCaseData &data) override { running = data.m_name; }
    void test_case_reenter(const doctest::TestCaseData &data) override { running = data.m_name; }
    void test_run_end(const doctest::TestRunStats &) override {
        if (skipped.empty()) return;
        std::printf("[skips] %zu test cases skipped in whole or in part\n", skipped.size());
        std::fflush(stdout);
    }
};
DOCTEST_REGISTER_LISTENER("skips", 1, SkipListener);

}  // namespace

void skip(const std::string &reason) {
    skipped.insert(running);
    std::printf("[skips] %s: %s\n", running.c_str(), reason.c_str());
    std::fflush(stdout);
}

}  // namespace runnel::testing
