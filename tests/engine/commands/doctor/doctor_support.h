// Shared by the tests of `runnel doctor`.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/commands/doctor/doctor.h"
#include "engine/commands/doctor/doctor_report.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

namespace runnel::testing {

inline ModelShape shape_of(const char *arch, const char *type) {
    ModelShape shape;
    shape.arch = arch, shape.type = type, shape.layers = 1;
    return shape;
}

// Runs doctor() in this process, where the GPU is the emulated one unless the machine says something else.
// Returns its exit code.
inline int call_doctor(const std::filesystem::path &model, const char *device, nlohmann::json &report,
                       const commands::Machine &machine = commands::Machine()) {
    const TemporaryDirectory directory;
    const std::string out = (directory / "out").string();
    commands::DoctorOptions options;
    options.path = model.string(), options.device = device, options.quick = true, options.json = true,
    options.threads = 1;
    const int fd = open(out.c_str(), O_CREAT | O_RDWR, 0600);
    REQUIRE(fd >= 0);
    commands::Io io;
    io.out = commands::Output(fd, "a file");
    io.quiet = true;
    const int code = commands::doctor(options, io, machine);
    close(fd);
    const std::vector<std::byte> bytes = read_bytes(out);
    report = nlohmann::json::parse(reinterpret_cast<const char *>(bytes.data()),
                                   reinterpret_cast<const char *>(bytes.data()) + bytes.size());
    return code;
}

// The finding whose subject contains a text; the test fails if there is none.
inline const commands::Finding &about(const std::vector<commands::Finding> &findings,
                                      const std::string &text) {
    const auto found = std::find_if(findings.begin(), findings.end(), [&](const commands::Finding &f) {
        return f.subject.find(text) != std::string::npos;
    });
    CAPTURE(text);
    REQUIRE(found != findings.end());
    return *found;
}

}  // namespace runnel::testing
