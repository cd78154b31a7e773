// Runs commands in the process of the tests, whose GPU is the emulated one.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "tests/simt/simt.h"
#include "tests/support/temporary.h"

namespace runnel::testing {

// Changes settings of the emulator during its lifetime.
struct Emulated {
    Emulated() { simt::settings() = {}; }
    ~Emulated() { simt::settings() = {}; }
    simt::Settings *operator->() { return &simt::settings(); }
};

inline std::string text_of(const std::filesystem::path &path) {
    const std::vector<std::byte> bytes = read_bytes(path);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

// The error that a command throws, and the output it wrote before.
struct Outcome {
    int code = -1;
    std::string error, out, err;
};

template <class Call>
Outcome call_here(Call command) {
    const TemporaryDirectory directory;
    Outcome outcome;
    const auto file = [&](const char *name) {
        return open((directory / name).c_str(), O_CREAT | O_RDWR, 0600);
    };
    const int out = file("out"), err = file("err"), in = open("/dev/null", O_RDONLY);
    REQUIRE(out >= 0);
    REQUIRE(err >= 0);
    commands::Io io{commands::Output(out, "out"), commands::Output(err, "err"), in};
    try {
        outcome.code = command(io);
    } catch (const std::exception &error) {
        outcome.error = error.what();
    }
    for (const int fd : {out, err, in}) close(fd);
    outcome.out = text_of(directory / "out"), outcome.err = text_of(directory / "err");
    return outcome;
}

inline Outcome run_here(const commands::RunOptions &options) {
    return call_here([&](commands::Io &io) { return run(options, io); });
}

// What `run --json` shows, without what differs from run to run.
inline nlohmann::json answer_of(const Outcome &outcome) {
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error << outcome.err);
    const nlohmann::json all = nlohmann::json::parse(outcome.out);
    return {{"text", all.at("text")}, {"tokens", all.at("tokens")}};
}

}  // namespace runnel::testing
