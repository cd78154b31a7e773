// Devices that are too old, too small, or lost during a run: the message is clear, and output written before
// stays. The commands run in this process, where the GPU is the emulated one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/commands.h"
#include "tests/engine/commands/commands_here.h"
#include "tests/simt/simt.h"
#include "tests/simt/turing.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::commands;
using runnel::testing::call_here, runnel::testing::Emulated, runnel::testing::Outcome;
using runnel::testing::TemporaryModel, runnel::testing::text_of;

namespace {

const TemporaryModel &tiny() {
    static const TemporaryModel model([] {
        testing::ModelShape shape;
        shape.type = "Q8_0", shape.layers = 1;
        return shape;
    }());
    return model;
}

ModelOptions on(const char *device) {
    ModelOptions model;
    model.path = tiny().path.string();
    model.device = device, model.context = 64, model.threads = 1;
    return model;
}

Outcome run_on(const char *device, int64_t predict) {
    RunOptions options;
    options.model = on(device);
    options.prompt = "ab", options.raw = true;
    options.generation.predict = predict, options.generation.sampling.temperature = 0;
    options.generation.ignore_eos = true;
    return call_here([&](Io &io) { return run(options, io); });
}

Outcome batch_on(const char *device, const std::filesystem::path &in, const std::filesystem::path &out,
                 bool resume) {
    BatchOptions options;
    options.model = on(device);
    options.input = in.string(), options.output = out.string();
    options.lines = options.raw = true, options.resume = resume, options.parallel = 2;
    options.generation.predict = 3, options.generation.sampling.temperature = 0;
    options.generation.ignore_eos = true;
    return call_here([&](Io &io) { return batch(options, io); });
}

}  // namespace

TEST_CASE("lost device: a GPU that is too old, too small or absent is reported") {
    Emulated emulated;
    emulated->major = 7;
    CHECK(run_on("cuda", 2).error ==
          "emulated device has compute capability 7.0, and the kernels need 7.5 (Turing, 2018) or later: use "
          "--device cpu");
    const Outcome passed_over = run_on("auto", 2);
    CHECK(passed_over.code == exit_code::kDone);
    CHECK(passed_over.err.find("everything runs on the CPU") != std::string::npos);
    emulated->major = 9;
    emulated->memory = 100 << 10;
    CHECK(run_on("auto", 2).code == exit_code::kDone);
    emulated->memory = size_t{1} << 30;
    emulated->devices = 0, emulated->why_none = "no NVIDIA driver was found";
    CHECK(run_on("cuda", 2).error.find("no NVIDIA driver was found (--device cpu needs no GPU)") !=
          std::string::npos);
    CHECK(run_on("auto", 2).code == exit_code::kDone);
    CHECK(run_on("cuda:1", 2).error.find("--device cuda:1") != std::string::npos);
}

TEST_CASE("lost device: the oldest supported GPU gives the same text") {
    Emulated emulated;
    const Outcome newer = run_on("cuda", 3);
    REQUIRE(newer.code == exit_code::kDone);
    const simt::Turing turing;
    const Outcome oldest = run_on("cuda", 3);
    CHECK(oldest.code == exit_code::kDone);
    CHECK(oldest.error == "");
    CHECK(oldest.out == newer.out);
    // No real device has so little shared memory: this stands for a model whose kernels need more than the
    // device has.
    emulated->shared_per_block = 8 << 10;
    CHECK(
        run_on("cuda", 2).error.find("the GPU gives a kernel 8 KiB of shared memory, but the model needs the "
                                     "kernel ") == 0);
    CHECK(run_on("auto", 2).code == exit_code::kDone);
}

TEST_CASE("lost device: run reports it, and the text written before stays") {
    Emulated emulated;
    const Outcome whole = run_on("cuda", 6);
    REQUIRE(whole.code == exit_code::kDone);
    REQUIRE(whole.out.size() >= 3);
    emulated->fail_at = 1 << 30, emulated->calls = 0;
    run_on("cuda", 6);
    const int64_t calls = emulated->calls;
    REQUIRE(calls > 20);
    size_t most = 0;
    // During the upload of weights, in the prompt, and at several tokens.
    for (const double share : {0.02, 0.8, 0.95}) {
        CAPTURE(share);
        emulated->calls = 0;
        emulated->fail_at = std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(calls)));
        const Outcome lost = run_on("cuda", 6);
        CHECK(lost.error.find("CUDA: ") == 0);
        CHECK(lost.error.find("unspecified launch failure") != std::string::npos);
        CHECK(whole.out.starts_with(lost.out));
        most = std::max(most, lost.out.size());
    }
    CHECK(most > 0);
    emulated->fail_at = 0;
    CHECK(run_on("cuda", 6).out == whole.out);
}

TEST_CASE("lost device: batch keeps the rows written before, and resumes after them") {
    Emulated emulated;
    const testing::TemporaryDirectory directory;
    const std::filesystem::path in = directory / "in.txt", out = directory / "out.jsonl",
                                expected = directory / "expected.jsonl";
    std::string lines;
    for (int i = 0; i < 6; ++i) lines += "row " + std::to_string(i) + "\n";
    testing::write_file(in, std::as_bytes(std::span(lines)));
    emulated->fail_at = 1 << 30;
    REQUIRE(batch_on("cuda", in, expected, false).code == exit_code::kDone);
    const int64_t calls = emulated->calls;
    const std::string all = text_of(expected);
    REQUIRE(std::count(all.begin(), all.end(), '\n') == 6);

    emulated->calls = 0, emulated->fail_at = calls * 3 / 4;
    const Outcome lost = batch_on("cuda", in, out, false);
    CHECK(lost.error.find("unspecified launch failure") != std::string::npos);
    CHECK(lost.err.find("continue with --resume") != std::string::npos);
    const std::string part = text_of(out);
    CHECK(all.starts_with(part));
    CHECK(part.ends_with('\n'));
    CHECK(part.size() < all.size());
    const auto rows = std::count(part.begin(), part.end(), '\n');
    CHECK(rows > 0);
    CHECK(lost.err.find("stopped after " + std::to_string(rows) + " rows") != std::string::npos);

    emulated->fail_at = 0;
    CHECK(batch_on("cuda", in, out, true).code == exit_code::kDone);
    CHECK(text_of(out) == all);
}

TEST_CASE("lost device: the program reports a driver that is too old") {
    const testing::TemporaryDirectory directory;
    const std::string library = (directory / "libcuda.so.1").string();
    constexpr std::string_view kSource =
        "int cuDriverGetVersion(int *v) { *v = 11040; return 0; }\n"
        "int cuInit(unsigned flags) { return 0; }\n"
        "int cuGetProcAddress(const char *name, void **p, int v, unsigned long f) { *p = 0; return 500; }\n";
    testing::write_file(directory / "old.c", std::as_bytes(std::span(kSource)));
    const std::string command = "cc -shared -fPIC -o " + testing::shell_word(library) + " " +
                                testing::shell_word(directory / "old.c") + " 2>/dev/null";
    REQUIRE_MESSAGE(testing::program_under_test(), "no program to test: set RUNNEL, or build build/runnel");
    if (std::system(command.c_str()) != 0) return testing::skip("no C compiler");
    testing::Process process{};
    process.stdout_limit = static_cast<size_t>(-1);
    process.arguments = {"devices"};
    process.environment = {"LD_LIBRARY_PATH=" + directory.path().string()};
    const testing::Result said = testing::execute(process);
    CAPTURE(said.out);
    CHECK(said.code == 0);
    const bool without = said.out.find("built without CUDA") != std::string::npos;
    const bool old = said.out.find("the NVIDIA driver is too old for this runnel: it supports CUDA 11.4") !=
                     std::string::npos;
    CHECK((without || old));
}
