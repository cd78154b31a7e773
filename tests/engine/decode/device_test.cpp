#include "engine/decode/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/generator.h"
#include "engine/decode/session.h"
#include "kernels/backend.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using decode::choose_device;
using decode::DeviceRequest;

namespace {

const kernels::cuda::Devices kNone{true, {}, "no NVIDIA driver was found"};
const kernels::cuda::Devices kTwo{true, {{"small", "cuda", 100, 10}, {"large", "cuda", 100, 90}}, ""};

size_t free_of_two(int number) {
    return kTwo.found.at(static_cast<size_t>(number)).memory_free;
}
decode::DeviceChoice choose_of_two(const DeviceRequest &request) {
    return choose_device(request, kTwo, free_of_two);
}

}  // namespace

TEST_CASE("device: names") {
    for (const char *name : {"auto", "cpu", "cuda", "cuda:0", "cuda:12"}) CHECK(decode::is_device_name(name));
    for (const char *name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 "})
        CHECK(!decode::is_device_name(name));
}

TEST_CASE("device: automatic where there is a GPU, the CPU where there is none") {
    CHECK(!choose_device({"auto", {}}, kNone).cuda);
    CHECK(choose_device({"auto", {}}, kNone).note.empty());
    CHECK(choose_device({"auto", {99, {}}}, kNone).note ==
          "no NVIDIA driver was found: everything runs on the CPU");
    CHECK(choose_of_two({"auto", {}}).cuda == 1);
    CHECK(!choose_of_two({"auto", {}}).required);
    CHECK(choose_of_two({"cuda:0", {}}).cuda == 0);
    CHECK(choose_of_two({"cuda", {32, {}}}).required);
    CHECK(!choose_of_two({"cpu", {}}).cuda);
    CHECK(!choose_of_two({"auto", {0, {}}}).cuda);
    CHECK(choose_of_two({"auto", {12, {}}}).cuda == 1);
}

TEST_CASE(
    "device: GPUs are opened until the rest can hardly have more memory free, and one that fails is no "
    "obstacle") {
    const kernels::cuda::Devices found{
        true, {{"old", "cuda", 500}, {"a", "cuda", 1000}, {"b", "cuda", 1000}, {"c", "cuda", 1000}}, ""};
    std::vector<int> asked;
    const auto choice = [&](std::vector<int> free) {
        asked.clear();
        return *choose_device({"auto", {}}, found, [&](int number) -> size_t {
                    asked.push_back(number);
                    if (free[static_cast<size_t>(number)] < 0)
                        throw kernels::BackendError(kernels::BackendError::Kind::Failed, "busy");
                    return static_cast<size_t>(free[static_cast<size_t>(number)]);
                }).cuda;
    };
    CHECK(choice({500, 990, 990, 990}) == 1);
    CHECK(asked == std::vector<int>{1});
    CHECK(choice({500, 300, 990, 990}) == 2);
    CHECK(asked == std::vector<int>{1, 2});
    CHECK(choice({490, 300, 200, 100}) == 0);
    CHECK(asked == std::vector<int>{1, 2, 3, 0});
    CHECK(choice({490, -1, 600, 700}) == 3);
    CHECK(choice({-1, -1, -1, -1}) == 1);
    CHECK(choose_device({"cuda:0", {}}, found, [](int) -> size_t {
              FAIL("asked");
              return 0;
          }).cuda == 0);
}

TEST_CASE("device: looking for GPUs opens none, and one that cannot be opened does not hide the others") {
    struct Reset {
        ~Reset() { simt::settings() = {}; }
    } reset;
    simt::settings().devices = 8;
    simt::settings().opened.clear();
    const kernels::cuda::Devices found = kernels::cuda::find_devices();
    CHECK(found.found.size() == 8);
    CHECK(simt::settings().opened.empty());
    CHECK(choose_device({"auto", {}}, found).cuda == 0);
    CHECK(simt::settings().opened == std::set<int>{0});
    simt::settings().broken_device = 0;
    CHECK(choose_device({"auto", {}}, found).cuda == 1);
    simt::settings().devices = 1;
    const testing::TemporaryModel model(testing::ModelShape{});
    decode::EngineOptions options{.model = model.path, .threads = 1, .context = 64, .batch = 32};
    options.device.device = "auto";
    decode::Engine engine(options);
    CHECK(engine.executor().device().kind == "cpu");
    options.device.device = "cuda";
    CHECK_THROWS_AS(decode::Engine{options}, kernels::BackendError);
}

TEST_CASE("device: a GPU asked for by name that is not there is an error") {
    CHECK_THROWS_WITH_AS(choose_device({"cuda", {}}, kNone),
                         "--device cuda: no NVIDIA driver was found (--device cpu runs without)",
                         kernels::BackendError);
    CHECK_THROWS_WITH_AS(choose_of_two({"cuda:2", {}}),
                         "--device cuda:2: there are only 2 CUDA devices (--device cpu runs without)",
                         kernels::BackendError);
}

// The tests' CUDA device is the emulator.
TEST_CASE("device: a model gives the same greedy text on the GPU as on the CPU") {
    for (const char *type : {"F16", "Q8_0", "Q4_0"}) {
        CAPTURE(type);
        testing::ModelShape shape;
        shape.type = type;
        shape.layers = 1;
        const testing::TemporaryModel model(shape);
        std::string text[2];
        for (const int gpu : {0, 1}) {
            decode::EngineOptions options{.model = model.path, .threads = 1, .context = 64, .batch = 32};
            options.device.device = gpu ? "cuda" : "cpu";
            decode::Engine engine(options);
            CHECK(engine.executor().device().kind == (gpu ? "cuda" : "cpu"));
            decode::Session session(engine.executor());
            const std::vector<text::TokenId> prompt = {1, 80, 120, 200, 77};
            REQUIRE(session.feed(prompt));
            for (int i = 0; i < 12; ++i) {
                const auto logits = session.logits();
                const auto best = static_cast<text::TokenId>(std::max_element(logits.begin(), logits.end()) -
                                                             logits.begin());
                text[gpu] += std::to_string(best) + " ";
                REQUIRE(session.feed(std::vector<text::TokenId>{best}));
            }
        }
        CHECK(text[0] == text[1]);
    }
}
