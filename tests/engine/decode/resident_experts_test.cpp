// Models of which a GPU holds only some experts at a time: the plan, and that logits are those of a GPU that holds all.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/error.h"
#include "engine/decode/placement.h"
#include "tests/engine/decode/computed_text.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::decode;
using testing::ModelShape;
using testing::TemporaryModel;

namespace {

constexpr size_t kMany = size_t{1} << 30;
constexpr int32_t kExperts = 12, kUsed = 2;

ModelShape mixture(int32_t layers = 2) {
    ModelShape shape;
    shape.arch = "qwen3moe";
    shape.type = "Q8_0";
    shape.layers = layers;
    shape.experts.count = kExperts;
    shape.experts.used = kUsed;
    return shape;
}

DeviceList gpus_and_cpu(int gpus) {
    simt::settings().devices = gpus;
    const kernels::Devices found = kernels::devices(1);
    DeviceList list = found.gpus;
    list.push_back(found.cpu);
    return list;
}

EngineOptions options_for(const TemporaryModel &model, std::optional<int32_t> gpu_experts) {
    EngineOptions options{.model = model.path, .threads = 1, .context = 96, .batch = 32};
    options.device.device = "cuda";
    options.device.placement.gpu_experts = gpu_experts;
    return options;
}

struct Restore {
    ~Restore() { simt::settings() = {}; }
};

}  // namespace

TEST_CASE("resident experts: logits have the same bits for any number, on one GPU and on two") {
    const Restore restore;
    const TemporaryModel model(mixture());
    Engine whole(options_for(model, {}));
    const ComputedText expected = compute(whole);
    CHECK(whole.expert_traffic().chosen == 0);
    for (const int32_t resident : {1, 5, 11}) {
        CAPTURE(resident);
        Engine engine(options_for(model, resident));
        const ComputedText result = compute(engine);
        CHECK(result.logits == expected.logits);
        CHECK(result.greedy == expected.greedy);
        // Results are the same, so work that was begun with another number can be continued.
        CHECK(engine.placement() == "all layers on the GPU");
        CHECK(engine.placement_details() == "all layers on the GPU, with " +
                                                std::to_string(std::max(resident, kUsed)) +
                                                " of a layer's 12 experts at a time");
        const kernels::ExpertTraffic traffic = engine.expert_traffic();
        CHECK(traffic.fetched > 0);
        CHECK(traffic.fetched_bytes % traffic.fetched == 0);
    }
    simt::settings().devices = 2;
    EngineOptions options = options_for(model, 4);
    options.device.device = "cuda:0,cuda:1";
    options.device.placement.shares = {1, 1};
    Engine two(options);
    CHECK(compute(two).logits == expected.logits);
    CHECK(two.placement_details().find(", with 4 of a layer's 12 experts at a time") != std::string::npos);
}

TEST_CASE(
    "resident experts: auto holds as many as fit, at least those of three tokens, before layers leave the "
    "GPU") {
    const Restore restore;
    const TemporaryModel model(mixture());
    const kernels::Program program = model::build(model.file).program;
    const DeviceList devices = gpus_and_cpu(1);
    const ContextRequest context{.own = 96, .asked = 96, .batch = 32};
    PlacementRequest wanted;
    wanted.gpu_experts = 0;
    const auto all = plan_placement(program, devices, {kMany, kMany}, wanted, context);
    REQUIRE(all);
    CHECK(all->placement.whole());
    CHECK(all->gpu.host == 0);
    int32_t last = kExperts;
    bool loaded = false, fewer_layers = false;
    for (size_t memory = all->gpu.all() - 1;; memory -= size_t{24} << 10) {
        CAPTURE(memory);
        const auto plan = plan_placement(program, devices, {memory, kMany}, wanted, context);
        if (!plan) break;
        const Placement &placement = plan->placement;
        CHECK(plan->gpu.all() <= memory);
        CHECK(placement.cpu_experts == 0);
        CHECK((plan->gpu.host > 0) == (placement.gpu_layers > 1));  // more than the output
        CHECK(placement.resident_experts <= last);
        last = placement.resident_experts;
        CHECK(last >= 3 * kUsed);
        fewer_layers = fewer_layers || placement.gpu_layers < 3;
        if (placement.gpu_layers < 3 || !placement.embedding) CHECK(last == 3 * kUsed);
        if (last == 8 && !loaded) {
            loaded = true;
            simt::settings().memory = memory;
            Engine engine(options_for(model, 0));
            CHECK(engine.placement_details() ==
                  "all layers on the GPU, with 8 of a layer's 12 experts at a time");
            REQUIRE(engine.notes().size() == 2);
            CHECK(engine.notes()[0].starts_with(engine.placement_details() + ": the GPU has "));
            CHECK(engine.notes()[1].starts_with("the experts of all layers take "));
            compute(engine, 1);
            simt::settings() = {};
        }
    }
    CHECK(loaded);
    CHECK(fewer_layers);
}

TEST_CASE(
    "resident experts: host memory without room for all experts, and a split of every layer, are refused") {
    const Restore restore;
    const TemporaryModel model(mixture());
    const kernels::Program program = model::build(model.file).program;
    const ContextRequest context{.own = 96, .asked = 96, .batch = 32};
    PlacementRequest four;
    four.gpu_experts = 4;
    const auto plan = [&](size_t host) {
        return plan_placement(program, gpus_and_cpu(1), {kMany, host}, four, context);
    };
    const size_t host = plan(kMany)->gpu.host;
    CHECK(plan(host + kernels::kHostReserve));
    try {
        plan(host + kernels::kHostReserve - 1);
        FAIL("accepted");
    } catch (const DecodeError &error) {
        CHECK(error.kind == DecodeError::Kind::OutOfMemory);
        const std::string what = error.what();
        CHECK(what.starts_with("--gpu-experts keeps a copy of all experts in host memory, of "));
        CHECK(what.ends_with(" are free: choose --cpu-moe, which reads them from the file"));
    }
    simt::settings().devices = 2;
    EngineOptions options = options_for(model, 4);
    options.device.split = Split::Tensor;
    CHECK_THROWS_WITH_AS(
        Engine{options},
        "--split tensor keeps all experts on the GPUs: leave out --gpu-experts, or choose --split layer",
        DecodeError);
}

TEST_CASE("resident experts: auto leaves room for a comfortable context, also with all layers asked for") {
    const Restore restore;
    const TemporaryModel model(mixture());
    const kernels::Program program = model::build(model.file).program;
    const DeviceList devices = gpus_and_cpu(1);
    const auto need = [&](std::optional<int32_t> experts, int64_t cells) {
        PlacementRequest request;
        request.gpu_experts = experts;
        return plan_placement(program, devices, {kMany, kMany}, request, {.own = cells, .asked = cells})
            ->gpu.all();
    };
    PlacementRequest wanted;
    wanted.gpu_experts = 0;
    // Room for all experts with a short context, or for some with a longer one.
    const size_t memory = need(8, 5000);
    CHECK(memory < need({}, 5000));
    for (const auto layers : {std::optional<int64_t>(), std::optional<int64_t>(99)}) {
        wanted.gpu_layers = layers;
        const auto plan = plan_placement(program, devices, {memory, kMany}, wanted, {.own = 1 << 16});
        REQUIRE(plan);
        CHECK(plan->placement.gpu_layers == 3);
        CHECK(plan->placement.resident_experts >= 8);
        CHECK(plan->context.context >= 4096);
    }
    // A number that does not fit is refused with one that does.
    wanted.gpu_layers = 99;
    wanted.gpu_experts = 11;
    try {
        plan_placement(program, devices, {memory, kMany}, wanted, {.own = 5000, .asked = 5000});
        FAIL("accepted");
    } catch (const DecodeError &error) {
        const std::string what = error.what();
        CAPTURE(what);
        CHECK(what.find("with 11 of a layer's 12 experts at a time") != std::string::npos);
        CHECK(what.find("--gpu-experts 8") != std::string::npos);
    }
}

TEST_CASE("resident experts: a number that means something else, or nothing, is noted") {
    const Restore restore;
    const TemporaryModel model(mixture());
    const auto notes = [](const TemporaryModel &file, int32_t experts) {
        Engine engine(options_for(file, experts));
        return engine.notes();
    };
    CHECK(notes(model, 1).at(0) == "--gpu-experts 1: a token uses 2, so the GPU holds as many");
    CHECK(notes(TemporaryModel(ModelShape{}), 4).at(0) == "--gpu-experts: the model has no experts");
}
