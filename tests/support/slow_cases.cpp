// Reports the cases that take long, which scripts/run-tests lists at the end.
#include <chrono>
#include <cstdio>
#include <string>

#include "tests/support/listener.h"

namespace runnel::testing {
namespace {

constexpr double kLong = 4;  // seconds

struct SlowCases : Listener {
    using Listener::Listener;
    using Clock = std::chrono::steady_clock;
    void test_case_start(const doctest::TestCaseData &data) override {
        name_ = data.m_name;
        start_ = Clock::now();
    }
    void test_case_end(const doctest::CurrentTestCaseStats &) override {
        const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
        if (seconds < kLong) return;
        std::printf("[slow] %3.0f s  %s\n", seconds, name_.c_str());
        std::fflush(stdout);
    }

  private:
    std::string name_;
    Clock::time_point start_;
};
DOCTEST_REGISTER_LISTENER("slow cases", 1, SlowCases);

}  // namespace
}  // namespace runnel::testing
