// What commands print about a GPU, and the progress bar while a model is loaded onto it. The tests' CUDA
// device is the emulator.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "engine/commands/commands.h"
#include "engine/commands/load_progress.h"
#include "engine/decode/engine.h"
#include "kernels/cuda/runtime/devices.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::commands;

namespace {

// A pipe or a pseudo terminal; read() returns what was written to it.
class Screen {
  public:
    explicit Screen(bool terminal) {
        if (terminal) {
            const int master = posix_openpt(O_RDWR | O_NOCTTY);
            REQUIRE(master >= 0);
            REQUIRE(grantpt(master) == 0);
            REQUIRE(unlockpt(master) == 0);
            ends_[0] = master;
            ends_[1] = open(ptsname(master), O_RDWR | O_NOCTTY);
        } else {
            REQUIRE(pipe(ends_) == 0);
        }
        fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    }
    ~Screen() {
        for (const int end : ends_) close(end);
    }
    Screen(const Screen &) = delete;
    Screen &operator=(const Screen &) = delete;

    Io io() const {
        Io io;
        io.out = Output(ends_[1], "the screen");
        io.err = Output(ends_[1], "the screen");
        return io;
    }
    std::string read() const {
        std::string all(1 << 16, ' ');
        const ssize_t count = ::read(ends_[0], all.data(), all.size());
        all.resize(count > 0 ? static_cast<size_t>(count) : 0);
        return all;
    }

  private:
    int ends_[2] = {-1, -1};
};

}  // namespace

TEST_CASE("gpu commands: the progress bar of loading appears on a terminal after a second") {
    CHECK(load_line(size_t{3} << 29, size_t{3} << 30, 0.5) ==
          "loading [############------------]  50%  1.5 of 3.0 GiB  3.2 GB/s");
    CHECK(load_line(0, 0, 0) == "loading [########################] 100%  0.0 of 0.0 GiB  0.0 GB/s");
    const Screen terminal(true), pipe(false);
    Io shown = terminal.io(), hidden = pipe.io(), quiet = terminal.io();
    quiet.quiet = true;
    const decode::StopRequest stop;
    const auto on_terminal = load_progress(shown, stop), in_pipe = load_progress(hidden, stop),
               silent = load_progress(quiet, stop);
    for (const auto &progress : {on_terminal, in_pipe, silent}) CHECK(progress(1, 100));
    CHECK(terminal.read().empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(1010));
    for (const auto &progress : {silent, in_pipe, on_terminal}) CHECK(progress(50, 100));
    CHECK(terminal.read().starts_with("\rloading [############------------]  50%"));
    CHECK(on_terminal(100, 100));
    CHECK(terminal.read() == "\r\x1b[K");
    CHECK(pipe.read().empty());
}

TEST_CASE(
    "gpu commands: an interrupt ends the upload and leaves nothing on the device, a deadline does not") {
    const Screen screen(false);
    Io io = screen.io();
    testing::ModelShape shape;
    shape.type = "Q8_0";
    const testing::TemporaryModel model(shape);
    const size_t before = kernels::cuda::free_memory(0);
    decode::StopRequest stop;
    decode::EngineOptions options{.model = model.path, .threads = 1, .context = 64};
    options.device.device = "cuda";
    size_t calls = 0, last = 0, all = 0;
    options.progress = [&, report = load_progress(io, stop)](size_t done, size_t of) {
        ++calls;
        CHECK(done > last);
        last = done;
        all = of;
        if (calls == 3) stop.request(decode::StopRequest::Reason::Deadline);
        if (calls == 5) stop.request(decode::StopRequest::Reason::Interrupt);
        return report(done, of);
    };
    try {
        decode::Engine engine(options);
        FAIL("loaded");
    } catch (const kernels::BackendError &error) {
        CHECK(error.kind == kernels::BackendError::Kind::Cancelled);
    }
    CHECK(calls == 5);
    CHECK(last < all);
    CHECK(kernels::cuda::free_memory(0) == before);
    // The same, to the end.
    calls = 5, last = 0;
    stop.reset();
    const decode::Engine engine(options);
    CHECK(last == all);
}

TEST_CASE("gpu commands: bench reports how many kernels a token launches") {
    testing::ModelShape shape;
    shape.layers = 3;
    const testing::TemporaryModel model(shape);
    const Screen screen(false);
    Io io = screen.io();
    BenchOptions options;
    options.model.path = model.path;
    options.prompts = {20}, options.generates = {3}, options.repetitions = 2;
    options.output = BenchOptions::Output::JsonObject;
    for (const char *device : {"cuda", "cpu"}) {
        CAPTURE(device);
        options.model.device = device;
        REQUIRE(bench(options, io) == 0);
        const auto tests = nlohmann::json::parse(screen.read())["tests"];
        REQUIRE(tests.size() == 2);
        CHECK(tests[0]["launches_per_token"].is_null());  // the prefill test
        const auto &decode = tests[1]["launches_per_token"];
        if (std::string(device) == "cpu")
            CHECK(decode.is_null());
        else
            // Per layer: q and k and v, attention, output, gate and up, down, with the norms in output and
            // down (F32 is not quantized); the embedding, the first norm, gathering the row of logits, and
            // the logits.
            CHECK(decode == 5 * 3 + 4);
    }
}

TEST_CASE("gpu commands: inspect shows which part of a model fits on the GPU") {
    testing::ModelShape shape;
    shape.layers = 4;
    const testing::TemporaryModel model(shape);
    const Screen screen(false);
    Io io = screen.io();
    InspectOptions options;
    options.path = model.path;
    REQUIRE(inspect(options, io) == 0);
    CHECK(screen.read().find("memory, GPU        all layers on the GPU with a context of 512: ") !=
          std::string::npos);
    options.json = true;
    REQUIRE(inspect(options, io) == 0);
    const auto whole = nlohmann::json::parse(screen.read())["memory"]["gpu"];
    CHECK(whole["gpu_layers"] == 5);
    CHECK(whole["layers"] == 5);
    CHECK(whole["context"] == 512);
    const size_t needed =
        whole["weights"].get<size_t>() + whole["cache"].get<size_t>() + whole["work"].get<size_t>();
    simt::settings().memory = needed - (size_t{300} << 10);
    REQUIRE(inspect(options, io) == 0);
    const auto part = nlohmann::json::parse(screen.read())["memory"]["gpu"];
    CHECK(part["gpu_layers"] < 5);
    CHECK(part["gpu_layers"] > 0);
    simt::settings().memory = size_t{1} << 20;
    REQUIRE(inspect(options, io) == 0);
    CHECK(nlohmann::json::parse(screen.read())["memory"]["gpu"]["gpu_layers"] == 0);
    options.json = false;
    REQUIRE(inspect(options, io) == 0);
    CHECK(screen.read().find("no layer fits on the GPU, which has ") != std::string::npos);
    simt::settings() = {};
}
