// Shared by tests that run the program. They need $RUNNEL (default build/runnel).
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/model_maker.h"
#include "tests/support/process.h"

namespace runnel::testing {

inline bool absent() {
    if (program_under_test()) return false;
    FAIL("no program to test: set RUNNEL, or build build/runnel");
    return true;
}

inline const TemporaryModel &tiny() {
    static const TemporaryModel model{ModelShape{}};
    return model;
}

inline Result runnel_with(std::vector<std::string> arguments, std::optional<std::string> input = {}) {
    return execute({.arguments = std::move(arguments),
                    .input = std::move(input),
                    .environment = {},
                    .stdout_to = {},
                    .watch = nullptr,
                    .type = nullptr});
}

inline Process process(std::vector<std::string> arguments) {
    Process p{};
    p.stdout_limit = static_cast<size_t>(-1);
    p.arguments = std::move(arguments);
    return p;
}

// True if the line editor waits at an empty prompt that it drew after the first `after` bytes of the output.
inline bool at_prompt(const std::string &out, size_t after) {
    return out.size() > after && out.ends_with(">>> \r\x1b[4C\x1b[?7h\x1b[?25h");
}

// What `run --json` shows, without what differs from run to run.
inline nlohmann::json answer_of(const Result &result) {
    REQUIRE_MESSAGE(result.code == 0, result.err);
    const nlohmann::json all = nlohmann::json::parse(result.out);
    return {{"text", all.at("text")}, {"tokens", all.at("tokens")}};
}

// One line that begins with the program's name.
inline void check_message(const Result &r) {
    CAPTURE(r.err);
    CHECK(r.out == "");
    CHECK(r.err.starts_with("runnel: "));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
    CHECK(r.err.ends_with('\n'));
}

}  // namespace runnel::testing
