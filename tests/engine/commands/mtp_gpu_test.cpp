// --mtp on the GPU, which is the emulated one.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/commands/commands.h"
#include "engine/decode/memory_plan.h"
#include "engine/model/model.h"
#include "kernels/device.h"
#include "kernels/tensor_program.h"
#include "tests/engine/commands/commands_here.h"
#include "tests/simt/simt.h"
#include "tests/support/draft_model.h"

using namespace runnel;
using namespace runnel::commands;
using namespace runnel::testing;
using decode::Mtp;
using nlohmann::json;

namespace {

RunOptions options_for(const DraftModel &model, Mtp mtp) {
    RunOptions options;
    options.model.path = model.path().string();
    options.model.device = "cuda", options.model.context = 96, options.model.threads = 1;
    options.draft.mtp = mtp;
    options.prompt = "a b c", options.raw = true, options.json = true;
    options.generation.predict = 24, options.generation.sampling.temperature = 0;
    options.generation.ignore_eos = true;
    return options;
}

bool drafted(const Outcome &outcome) {
    return json::parse(outcome.out).contains("speculation");
}

}  // namespace

TEST_CASE("--mtp: on the (emulated) GPU the text is the same with and without") {
    Emulated emulated;
    for (const char *arch : {"glm4moe", "qwen35"}) {
        CAPTURE(arch);
        const DraftModel model(arch);
        (void)model.write();
        for (const float temperature : {0.0f, 0.9f}) {
            CAPTURE(temperature);
            const auto with = [&](Mtp mtp) {
                RunOptions options = options_for(model, mtp);
                options.generation.sampling.temperature = temperature;
                options.generation.seed = 4;
                return run_here(options);
            };
            const Outcome off = with(Mtp::Off), on = with(Mtp::On);
            CHECK(answer_of(on) == answer_of(off));
            CHECK(drafted(on));
            CHECK_FALSE(drafted(off));
            if (temperature == 0) CHECK(drafted(with(Mtp::Auto)));
        }
    }
}

TEST_CASE("--mtp: layers on the GPU and the CPU are a usage error, and auto drafts nothing") {
    Emulated emulated;
    const DraftModel model("qwen35");
    (void)model.write();
    const auto with = [&](Mtp mtp, const std::string &gpu_layers) {
        RunOptions options = options_for(model, mtp);
        options.model.gpu_layers = gpu_layers;
        return run_here(options);
    };
    CHECK(with(Mtp::On, "1").error ==
          "--mtp: the next-token-prediction block needs all layers on GPUs or all on the CPU (now: 1 of 3 "
          "layers on the "
          "GPU, the others on the CPU): add --device cpu");
    const Outcome automatic = with(Mtp::Auto, "1");
    CHECK(answer_of(automatic) == answer_of(with(Mtp::Off, "1")));
    CHECK_FALSE(drafted(automatic));
    CHECK(drafted(with(Mtp::On, "all")));
}

TEST_CASE("--mtp: on several GPUs the text is that of one, with and without drafts") {
    Emulated emulated;
    emulated->devices = 3;
    for (const char *arch : {"glm4moe", "qwen35"}) {
        CAPTURE(arch);
        const DraftModel model(arch);
        (void)model.write();
        for (const bool peers : {true, false}) {
            CAPTURE(peers);
            emulated->peers = peers;
            const auto with = [&](Mtp mtp, std::vector<double> shares) {
                RunOptions options = options_for(model, mtp);
                if (shares.empty()) options.model.device = "cuda:0";
                options.model.tensor_split = std::move(shares);
                return run_here(options);
            };
            const Outcome one = with(Mtp::Off, {}), drafts = with(Mtp::On, {1, 1, 1});
            CHECK(answer_of(with(Mtp::Off, {1, 1, 1})) == answer_of(one));
            CHECK(answer_of(drafts) == answer_of(one));
            CHECK(drafted(drafts));
        }
    }
}

TEST_CASE(
    "--mtp: with --split tensor and --split context the text is that of one GPU, and --spec-verify agrees") {
    Emulated emulated;
    emulated->devices = 3;
    const DraftModel attention("glm4moe"), hybrid("qwen35");
    (void)attention.write();
    (void)hybrid.write();
    const auto check = [&](const DraftModel &model, decode::Split split, std::vector<double> shares,
                           float temperature) {
        RunOptions options = options_for(model, Mtp::Off);
        options.generation.predict = 10, options.generation.seed = 4;
        options.generation.sampling.temperature = temperature;
        options.model.device = "cuda:0";
        const Outcome one = run_here(options);
        options.model.device = "cuda", options.model.split = split;
        options.model.tensor_split = std::move(shares);
        options.draft.mtp = Mtp::On, options.verify_drafts = true;
        const Outcome on = run_here(options);
        CHECK(answer_of(on) == answer_of(one));
        CHECK(drafted(on));
    };
    check(attention, decode::Split::Tensor, {1, 2, 1}, 0.9f);
    check(hybrid, decode::Split::Context, {}, 0);
}

TEST_CASE("--mtp: a GPU without memory for the block is reported, and auto goes on without drafts") {
    Emulated emulated;
    const DraftModel model("glm4moe");
    const gguf::File file = model.write();
    // The block's cache is larger than what the driver is expected to take.
    constexpr int32_t kLong = 1 << 20;
    const auto plan = decode::memory_plan(model::build(file), {.context = kLong});
    REQUIRE(plan.gpu);
    REQUIRE(plan.gpu->part);
    const auto with = [&](Mtp mtp) {
        RunOptions options = options_for(model, mtp);
        options.model.context = kLong;
        options.generation.predict = 2;
        return run_here(options);
    };
    emulated->memory = plan.gpu->part->gpu.all() + (size_t{1} << 20);
    const Outcome off = with(Mtp::Off), on = with(Mtp::On), automatic = with(Mtp::Auto);
    CHECK(on.error.find("the GPU has ") == 0);
    CHECK(on.error.find("choose a smaller context with -c, or --device cpu") != std::string::npos);
    CHECK(answer_of(automatic) == answer_of(off));
    CHECK(automatic.err.find("the next-token-prediction block does not draft: the GPU has ") !=
          std::string::npos);
    CHECK_FALSE(drafted(automatic));
    emulated->memory = size_t{2} << 30;
    CHECK(drafted(with(Mtp::On)));
}

TEST_CASE("--mtp: with --split tensor, a first GPU without memory for the block is named") {
    Emulated emulated;
    emulated->devices = 2;
    const DraftModel model("glm4moe");
    const gguf::File file = model.write();
    constexpr int32_t kLong = 1 << 20;
    const auto with = [&](Mtp mtp) {
        RunOptions options = options_for(model, mtp);
        options.model.context = kLong;
        options.model.split = decode::Split::Tensor;
        options.generation.predict = 2;
        return run_here(options);
    };
    // The first GPU's part of the model fits, but not the block's cache, which is whole.
    const kernels::Program program = model::build(file).program;
    const kernels::TensorProgram tensor = kernels::cut_program(program, std::vector<double>{1, 1});
    const kernels::CacheConfig cache = decode::cache_config(program, {.cells = kLong}, kLong);
    const size_t need = kernels::devices(1).gpus.front()->need(tensor.programs[0], cache, 512).all();
    emulated->memory_of = {need + (size_t{1} << 20), size_t{2} << 30};
    const Outcome off = with(Mtp::Off), on = with(Mtp::On), automatic = with(Mtp::Auto);
    CHECK(on.error.find("cuda:0: the GPU has ") == 0);
    CHECK(answer_of(automatic) == answer_of(off));
    CHECK(automatic.err.find("the next-token-prediction block does not draft: cuda:0: the GPU has ") !=
          std::string::npos);
    CHECK_FALSE(drafted(automatic));
    emulated->memory_of = {size_t{2} << 30, size_t{2} << 30};
    CHECK(drafted(with(Mtp::On)));
}
