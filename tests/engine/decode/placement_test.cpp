// Models divided between the emulated GPU and the CPU: the placement, and that the text stays the same.
#include "engine/decode/placement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/error.h"
#include "engine/model/layers.h"
#include "tests/engine/decode/computed_text.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::decode;
using testing::ModelShape;
using testing::TemporaryModel;

namespace {

constexpr size_t kPlenty = size_t{1} << 30;

// The emulated device, and the CPU.
const DeviceList &gpu_and_cpu() {
    static const kernels::Devices found = kernels::devices(1);
    static const DeviceList both = {found.gpus.front(), found.cpu};
    return both;
}

// During its lifetime, the emulated device has `bytes` of memory.
struct SmallGpu {
    explicit SmallGpu(size_t bytes) { simt::settings().memory = bytes; }
    ~SmallGpu() { simt::settings() = {}; }
};

EngineOptions options_for(const TemporaryModel &model, std::optional<int64_t> gpu_layers,
                          std::optional<int64_t> cpu_experts = {}) {
    EngineOptions options{.model = model.path, .threads = 1, .context = 96, .batch = 32};
    options.device = {"cuda", {gpu_layers, cpu_experts}};
    return options;
}

double divergence(const std::vector<float> &p, const std::vector<float> &q) {
    const auto log_sum = [](const std::vector<float> &l) {
        double sum = 0;
        for (const float x : l) sum += std::exp(double{x});
        return std::log(sum);
    };
    const double of_p = log_sum(p), of_q = log_sum(q);
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i)
        kl += std::exp(double{p[i]} - of_p) * ((double{p[i]} - of_p) - (double{q[i]} - of_q));
    return kl;
}

ComputedText on_cpu(const TemporaryModel &model) {
    EngineOptions options = options_for(model, 0);
    options.device.device = "cpu";
    Engine engine(options);
    return compute(engine);
}

size_t steps_on(const std::vector<uint8_t> &device, uint8_t which) {
    return static_cast<size_t>(std::count(device.begin(), device.end(), which));
}

}  // namespace

TEST_CASE("placement: layers count from the end, with the output as the last") {
    ModelShape shape;
    shape.layers = 3;
    const TemporaryModel file(shape);
    const kernels::Program program = model::build(file.file).program;
    const model::Layers layers = model::layers_of(program);
    REQUIRE(layers.count == 3);
    for (int32_t n = 0; n <= 4; ++n) {
        const std::vector<uint8_t> device = assign_steps(program, gpu_and_cpu(), {3, n, false, 0});
        for (size_t i = 0; i < device.size(); ++i)
            CHECK(device[i] == (layers.of_step[i] < 0 || layers.of_step[i] < 4 - n));
    }
    CHECK(steps_on(assign_steps(program, gpu_and_cpu(), {3, 4, true, 0}), 1) == 0);
}

TEST_CASE("placement: any number of layers on the GPU gives the same text as the CPU") {
    struct Case {
        const char *arch, *type;
    };
    for (const auto &[arch, type] : {Case{"llama", "Q8_0"}, Case{"gemma2", "F16"}}) {
        CAPTURE(arch);
        ModelShape shape;
        shape.arch = arch;
        shape.type = type;
        shape.layers = 2;
        const TemporaryModel model(shape);
        const ComputedText expected = on_cpu(model);
        for (int64_t layers = arch == std::string("llama") ? 1 : 2; layers <= 3; ++layers) {
            CAPTURE(layers);
            Engine engine(options_for(model, layers));
            CHECK((engine.executor().device().kind == "cuda") == (layers == 3));
            const ComputedText result = compute(engine);
            CHECK(divergence(expected.logits, result.logits) < 1e-3);
            CHECK(result.greedy == expected.greedy);
        }
    }
}

TEST_CASE("placement: experts run on the CPU while attention runs on the GPU") {
    ModelShape shape;
    shape.arch = "qwen3moe";
    shape.type = "F16";
    shape.layers = 2;
    const TemporaryModel model(shape);
    const ComputedText expected = on_cpu(model);
    const kernels::Program program = model::build(model.file).program;
    for (const int64_t cpu_experts : {1, 99}) {
        CAPTURE(cpu_experts);
        Engine engine(options_for(model, {}, cpu_experts));
        const ComputedText result = compute(engine);
        CHECK(divergence(expected.logits, result.logits) < 1e-3);
        CHECK(result.greedy == expected.greedy);
        CHECK(engine.placement().find(cpu_experts == 1
                                          ? "experts of the first 1 layers on the CPU"
                                          : "experts of all layers on the CPU") != std::string::npos);
        const Placement placement{2, 3, true, static_cast<int32_t>(std::min<int64_t>(cpu_experts, 2))};
        CHECK(steps_on(assign_steps(program, gpu_and_cpu(), placement), 1) ==
              static_cast<size_t>(placement.cpu_experts));
    }
}

TEST_CASE("placement: as many layers as fit, and never more than was predicted") {
    ModelShape shape;
    shape.layers = 4;
    shape.type = "Q8_0";
    shape.width = 256;
    shape.ff = 1024;
    const TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const ContextRequest context{.own = 256, .asked = 96, .batch = 32};
    const auto all = plan_placement(program, gpu_and_cpu(), {kPlenty, kPlenty}, {}, context);
    REQUIRE(all);
    CHECK(all->placement.whole());
    CHECK(!all->divided);
    int32_t last = 5;
    bool divided = false, none = false, loaded = false;
    for (size_t memory = all->gpu.all(); !none; memory -= size_t{512} << 10) {
        CAPTURE(memory);
        const auto plan = plan_placement(program, gpu_and_cpu(), {memory, kPlenty}, {}, context);
        none = !plan;
        if (none) break;
        CHECK(plan->gpu.all() <= memory);
        CHECK(plan->placement.gpu_layers <= last);
        last = plan->placement.gpu_layers;
        divided = divided || (last > 0 && last < 4);
        if (last == 2 && !loaded) {
            loaded = true;
            // The planned model can be loaded on a device of that size.
            const SmallGpu gpu(memory);
            Engine engine(options_for(model, last));
            CHECK(compute(engine, 1).greedy == std::vector<text::TokenId>(1, on_cpu(model).greedy[0]));
        }
    }
    CHECK(divided);
    CHECK(loaded);
}

TEST_CASE("placement: a placement is found even if the CPU has little memory for its part of the cache") {
    ModelShape shape;
    shape.layers = 6;
    const TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const ContextRequest context{.own = 1 << 16, .asked = 1 << 16};
    const auto plan = [&](FreeMemory free, std::optional<int64_t> layers) -> std::optional<int32_t> {
        try {
            const auto made = plan_placement(program, gpu_and_cpu(), free, {layers, {}}, context);
            if (made) return made->placement.gpu_layers;
        } catch (const DecodeError &) {
        }
        return std::nullopt;
    };
    const size_t all = plan_placement(program, gpu_and_cpu(), {kPlenty, kPlenty}, {}, context)->gpu.all();
    const size_t layer = cache_bytes(program, {.cells = context.asked}) / 6;
    int found = 0, too_little = 0;
    for (int gpu = 1; gpu <= 6; ++gpu)
        for (int cpu = 0; cpu <= 6; ++cpu) {
            CAPTURE(gpu);
            CAPTURE(cpu);
            const FreeMemory free{all - static_cast<size_t>(gpu) * layer,
                                  static_cast<size_t>(cpu) * layer + layer / 2};
            std::optional<int32_t> best;
            for (int64_t n = 7; n >= 1 && !best; --n) best = plan(free, n);
            CHECK(plan(free, {}) == best);
            ++(best ? found : too_little);
        }
    CHECK(found > 10);
    CHECK(too_little > 5);
}

TEST_CASE("placement: the context shrinks to fit more layers, but not below a comfortable size") {
    ModelShape shape;
    shape.layers = 4;
    const TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const auto need = [&](int64_t cells) {
        return plan_placement(program, gpu_and_cpu(), {kPlenty, kPlenty}, {}, {.own = cells, .asked = cells})
            ->gpu.all();
    };
    const auto plan = [&](size_t memory, PlacementRequest request = {}) {
        return plan_placement(program, gpu_and_cpu(), {memory, kPlenty}, request, {.own = 1 << 16});
    };
    const auto shorter = plan(need(10000));
    REQUIRE(shorter);
    CHECK(shorter->placement.whole());
    CHECK(shorter->context.reduced);
    CHECK(shorter->context.context >= 9900);
    const auto fewer = plan(need(2000));
    REQUIRE(fewer);
    CHECK(fewer->placement.gpu_layers <= 4);
    CHECK(fewer->context.context >= 4096);
    const auto asked = plan(need(2000), {5, {}});
    REQUIRE(asked);
    CHECK(asked->placement.gpu_layers == 5);
    CHECK(asked->context.context < 2100);
}

TEST_CASE("placement: layers that do not fit are refused with the numbers and with what would fit") {
    ModelShape shape;
    shape.layers = 4;
    const TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const ContextRequest context{.own = 8192, .asked = 8192};
    const size_t all = plan_placement(program, gpu_and_cpu(), {kPlenty, kPlenty}, {}, context)->gpu.all();
    try {
        plan_placement(program, gpu_and_cpu(), {all - (size_t{1} << 20), kPlenty}, {99, {}}, context);
        FAIL("accepted");
    } catch (const DecodeError &error) {
        CHECK(error.kind == DecodeError::Kind::OutOfMemory);
        const std::string what = error.what();
        CAPTURE(what);
        CHECK(what.find("are needed for all layers on the GPU") != std::string::npos);
        CHECK(what.find("of cache for a context of 8192") != std::string::npos);
        CHECK(what.find("this fits: -ngl ") != std::string::npos);
        CHECK(what.find(", or -c ") != std::string::npos);
        // The hint in the message is right.
        const int64_t layers = std::stoll(what.substr(what.find("-ngl ") + 5));
        CHECK(plan_placement(program, gpu_and_cpu(), {all - (size_t{1} << 20), kPlenty}, {layers, {}},
                             context));
        ContextRequest shorter = context;
        shorter.asked = std::stoll(what.substr(what.find("-c ") + 3));
        CHECK(plan_placement(program, gpu_and_cpu(), {all - (size_t{1} << 20), kPlenty}, {99, {}}, shorter));
        CHECK(shorter.asked > 4096);
    }
}

TEST_CASE("placement: its description counts steps without a GPU kernel where they run") {
    ModelShape shape;
    shape.layers = 3;
    const TemporaryModel file(shape);
    kernels::Program program = model::build(file.file).program;
    CHECK(placement_text(program, gpu_and_cpu(), {3, 4, true, 0}) == "all layers on the GPU");
    CHECK(placement_text(program, gpu_and_cpu(), {3, 4, false, 0}) ==
          "all layers on the GPU, token embeddings on the CPU");
    CHECK(placement_text(program, gpu_and_cpu(), {3, 2, false, 0}) ==
          "2 of 4 layers on the GPU, the others on the CPU");
    CHECK(placement_text(program, gpu_and_cpu(), {3, 0, false, 0}) == "all layers on the CPU");
    for (kernels::Step &step : program.steps)
        if (auto *a = std::get_if<kernels::Attention>(&step); a && a->cache == 1)
            a->head_dim_k = a->head_dim_v = 4096;
    CHECK(placement_text(program, gpu_and_cpu(), {3, 4, true, 0}) ==
          "3 of 4 layers on the GPU, the others on the CPU");

    shape.arch = "qwen3moe";
    const TemporaryModel sparse(shape);
    const kernels::Program experts = model::build(sparse.file).program;
    CHECK(placement_text(experts, gpu_and_cpu(), {3, 4, true, 2}) ==
          "all layers on the GPU, experts of the first 2 layers on the CPU");
    CHECK(placement_text(experts, gpu_and_cpu(), {3, 4, false, 3}) ==
          "all layers on the GPU, experts of all layers on the CPU, token embeddings on the CPU");
    CHECK(placement_text(experts, gpu_and_cpu(), {3, 3, false, 3}) ==
          "3 of 4 layers on the GPU, the others on the CPU, experts of all of those on the CPU");
}

TEST_CASE("placement: a GPU that is too small for any layer is skipped unless it is named") {
    ModelShape shape;
    shape.layers = 1;
    const TemporaryModel model(shape);
    const SmallGpu gpu(size_t{8} << 20);
    EngineOptions options = options_for(model, {});
    CHECK_THROWS_AS(Engine{options}, DecodeError);
    options.device.device = "auto";
    Engine engine(options);
    REQUIRE(!engine.notes().empty());
    CHECK(engine.notes()[0] == "no layer of the model fits the GPU; everything runs on the CPU");
    CHECK(engine.executor().device().kind == "cpu");
    CHECK(engine.placement() == "all layers on the CPU");
}

TEST_CASE("placement: the output layer alone, which has no cache, needs room for its weights") {
    ModelShape shape;
    shape.layers = 2;
    const TemporaryModel model(shape);
    const kernels::Program program = model::build(model.file).program;
    const ContextRequest context{.own = 256, .asked = 96, .batch = 32};
    const auto alone = plan_placement(program, gpu_and_cpu(), {kPlenty, kPlenty}, {1, {}}, context);
    REQUIRE(alone);
    CHECK(plan_placement(program, gpu_and_cpu(), {alone->gpu.all() + 1, kPlenty}, {}, context));
    CHECK(!plan_placement(program, gpu_and_cpu(), {alone->gpu.all() - 1, kPlenty}, {}, context));
}
