// The memory planner, compared with published figures of models, and with model files.
#include "engine/measure/planner.h"

#include <doctest/doctest.h>

#include <stdexcept>

#include "engine/decode/memory_plan.h"
#include "engine/model/model.h"
#include "engine/model/window.h"
#include "tests/support/model_maker.h"

namespace runnel::measure {
namespace {

using gguf::Type;
using kernels::CacheType;

constexpr const char *kSeventyBillion =
    "layers=80,width=8192,heads=64,kv-heads=8,ff=28672,vocab=128256";  // Llama 3 70B

TEST_CASE("planner: shapes give the published sizes of models") {
    const kernels::Program large = program_of(parse_shape(kSeventyBillion));
    const Parameters parameters = parameters_of(large);
    CHECK(parameters.all() / 1e9 == doctest::Approx(70.55).epsilon(0.001));
    CHECK(weight_bytes(large, Type::F16) / 1e9 == doctest::Approx(141.1).epsilon(0.001));
    // Q8_0: 8 bits, and a 16-bit scale for 32 weights. Q4_0: 4 bits and the same scale.
    CHECK(weight_bytes(large, Type::Q8_0) == doctest::Approx(parameters.all() * 34 / 32));
    CHECK(weight_bytes(large, Type::Q4_0) == doctest::Approx(parameters.all() * 18 / 32));
    CHECK(cell_bytes(large, {}) == 2 * 80 * 8 * 128 * 2);
    CHECK(cell_formula(large, {}) == "2 x 80 layers x 8 heads x 128 values x 2 bytes");
    CHECK(cell_formula(large, {CacheType::Q8_0, CacheType::F16}) ==
          "80 layers x 8 heads x (128 x 1.0625 + 128 x 2 bytes)");

    // Llama 2 7B: 32 heads of 128 in 32 layers. 2,000 tokens take one gigabyte.
    const kernels::Program small =
        program_of(parse_shape("layers=32,width=4096,heads=32,ff=11008,vocab=32000"));
    CHECK(parameters_of(small).all() / 1e9 == doctest::Approx(6.738).epsilon(0.001));
    CHECK(cell_bytes(small, {}) == 524288);
    CHECK(2000.0 * static_cast<double>(cell_bytes(small, {})) / 1e9 == doctest::Approx(1.05).epsilon(0.01));
    // Attention has 4 of the 4 + 3 * 2.6875 square matrices of a layer.
    const Parameters parts = parameters_of(small);
    CHECK(parts.attention / (parts.attention + parts.feed_forward) == doctest::Approx(4 / (4 + 3 * 2.6875)));

    // DeepSeek-V3 caches 576 values per layer and token, not 128 heads of K and V.
    const kernels::Program latent = program_of(
        parse_shape("layers=61,width=7168,heads=128,head-dim=128,ff=18432,vocab=129280,latent=576"));
    CHECK(cell_bytes(latent, {}) == 61 * 576 * 2);
    CHECK(cell_formula(latent, {}) == "61 layers x 1 head x 576 values x 2 bytes");
}

TEST_CASE("planner: windows stop growing, and the number of sequences that fit agrees with a run's cache") {
    const BareShape shape = parse_shape(
        "layers=6,width=512,heads=8,kv-heads=2,ff=1024,vocab=1000,window=256,"
        "window-layers=4,tied=1");
    const kernels::Program program = program_of(shape);
    const auto groups = cell_groups(program);
    REQUIRE(groups.size() == 2);
    CHECK(groups[0].layers == 4);
    CHECK(groups[0].window == 256);
    CHECK(groups[1].layers == 2);
    CHECK(cell_bytes(program, {}) == 2 * 2 * 2 * 64 * 2);
    // The embedding counts once.
    CHECK(parameters_of(program).embedding == 512 * 1000);
    const double weights = weight_bytes(program, Type::Q4_K);
    for (const int64_t context : {100, 1000, 20'000})
        for (const double memory : {5e6, 40e6, 300e6}) {
            CAPTURE(context);
            CAPTURE(memory);
            const int64_t fit = sequences_that_fit(program, weights, memory, context, {});
            const auto total = [&](int64_t sequences) {
                const auto count = static_cast<int32_t>(sequences);
                return weights +
                       static_cast<double>(decode::cache_bytes(
                           program, {.cells = decode::cells_for(context, count), .sequences = count}));
            };
            if (fit > 0) CHECK(total(fit) <= memory);
            CHECK(total(fit + 1) > memory);
        }
    CHECK(sequences_that_fit(program, 1e9, 1e9, 100, {}) == 0);
}

TEST_CASE("planner: a model's parameters and weights are those of its tensors") {
    for (const char *arch : {"llama", "gemma3", "qwen3moe", "deepseek2"}) {
        CAPTURE(arch);
        testing::ModelShape shape;
        shape.arch = arch, shape.type = "Q8_0";
        const testing::TemporaryModel model(shape);
        double elements = 0, bytes = 0;
        for (const gguf::Tensor &tensor : model.file.tensors())
            elements += static_cast<double>(tensor.elements()), bytes += static_cast<double>(tensor.bytes);
        const model::Model built = model::build(model.file);
        CHECK(parameters_of(built.program).all() == doctest::Approx(elements));
        CHECK(weight_bytes(built.program) == doctest::Approx(bytes));
        const decode::MemoryPlan plan = decode::memory_plan(built, {.context = 512});
        CHECK(1024 * cell_bytes(built.program, {}) == plan.cache_per_1k);
    }
}

TEST_CASE("planner: invalid shapes are refused") {
    for (const char *text :
         {"", "layers", "layers=", "layers=1,width=8", "layers=x,width=8,heads=1,ff=1,vocab=1",
          "layers=2,width=64,heads=3,ff=1,vocab=1", "layers=2,width=64,heads=4,kv-heads=3,ff=1,vocab=1",
          "layers=2,width=64,heads=4,ff=1,vocab=1,window-layers=1",
          "layers=99999,width=64,heads=4,ff=1,vocab=1", "layers=2,width=64,heads=4,ff=1,vocab=1,depth=3",
          "layers=4096,width=16777216,heads=65536,head-dim=16777216,ff=1,vocab=1",
          "layers=2,width=-64,heads=4,ff=1,vocab=1", "layers=2,width=64,heads=4,ff=1,vocab=1,"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(parse_shape(text), std::invalid_argument);
    }
}

}  // namespace
}  // namespace runnel::measure
