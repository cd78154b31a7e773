#include "tests/support/skip.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <set>

namespace runnel::testing {
namespace {

std::string running;            // the current test case
std::set<std::string> skipped;  // names of cases

// Tracks the current test case, and reports at the end how many were skipped.
struct SkipListener : doctest::IReporter {
    explicit SkipListener(const doctest::ContextOptions &) {}
    void test_case_start(const doctest::TestCaseData &data) override { running = data.m_name; }
    void test_case_reenter(const doctest::TestCaseData &data) override { running = data.m_name; }
    void test_run_end(const doctest::TestRunStats &) override {
        if (skipped.empty()) return;
        std::printf("[skips] %zu test cases skipped in whole or in part\n", skipped.size());
        std::fflush(stdout);
    }
    void report_query(const doctest::QueryData &) override {}
    void test_run_start() override {}
    void test_case_end(const doctest::CurrentTestCaseStats &) override {}
    void test_case_exception(const doctest::TestCaseException &) override {}
    void subcase_start(const doctest::SubcaseSignature &) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData &) override {}
    void log_message(const doctest::MessageData &) override {}
    void test_case_skipped(const doctest::TestCaseData &) override {}
};
DOCTEST_REGISTER_LISTENER("skips", 1, SkipListener);

}  // namespace

void skip(const std::string &reason) {
    skipped.insert(running);
    std::printf("[skips] %s: %s\n", running.c_str(), reason.c_str());
    std::fflush(stdout);
}

}  // namespace runnel::testing
