#include "engine/decode/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/generator.h"
#include "engine/decode/session.h"
#include "kernels/backend.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using decode::choose_device;
using decode::DeviceRequest;

namespace {

const kernels::cuda::Devices kNone{true, {}, "no NVIDIA driver was found"};
const kernels::cuda::Devices kTwo{true, {{"small", "cuda", 100, 10}, {"large", "cuda", 100, 90}}, ""};

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
    CHECK(choose_device({"auto", {}}, kTwo).cuda == 1);
    CHECK(!choose_device({"auto", {}}, kTwo).required);
    CHECK(choose_device({"cuda:0", {}}, kTwo).cuda == 0);
    CHECK(choose_device({"cuda", {32, {}}}, kTwo).required);
    CHECK(!choose_device({"cpu", {}}, kTwo).cuda);
    CHECK(!choose_device({"auto", {0, {}}}, kTwo).cuda);
    CHECK(choose_device({"auto", {12, {}}}, kTwo).cuda == 1);
}

TEST_CASE("device: a GPU asked for by name that is not there is an error") {
    CHECK_THROWS_WITH_AS(choose_device({"cuda", {}}, kNone),
                         "--device cuda: no NVIDIA driver was found (--device cpu runs without)",
                         kernels::BackendError);
    CHECK_THROWS_WITH_AS(choose_device({"cuda:2", {}}, kTwo),
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
