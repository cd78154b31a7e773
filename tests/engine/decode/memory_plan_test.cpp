// The memory that is planned for a model equals the memory that running it takes, to the byte.
#include "engine/decode/memory_plan.h"

#include <doctest/doctest.h>

#include "engine/decode/engine.h"
#include "engine/model/window.h"
#include "kernels/steps.h"
#include "tests/support/model_maker.h"

namespace runnel::decode {
namespace {

using kernels::CacheType;

struct Case {
    const char *arch;
    int64_t context;
    int32_t sequences;
    CacheTypes types;
    int32_t window, sinks;
};

// The pools of an engine in which nothing has run yet.
size_t held(Engine &engine) {
    Executor &executor = engine.executor();
    const FreeBlocks free = executor.free_blocks();
    const bool states = executor.state_bytes() > 0;
    const size_t groups = free.size() - (states ? 1 : 0);
    size_t bytes = states ? static_cast<size_t>(free.back()) * executor.state_bytes() : 0;
    for (size_t group = 0; group < groups; ++group)
        bytes += static_cast<size_t>(free[group]) * executor.block_bytes(group);
    return bytes;
}

TEST_CASE("memory plan: the planned cache equals the cache of a run") {
    for (const Case &c : {Case{"llama", 300, 1, {}, 0, 0}, Case{"llama", 4096, 1, {}, 64, 4},
                          Case{"llama", 8192, 3, {CacheType::Q8_0, CacheType::Q4_0}, 512, 0},
                          Case{"gemma3", 16384, 2, {}, 0, 0}, Case{"phi3", 4096, 1, {}, 0, 0},
                          Case{"deepseek2", 2000, 2, {CacheType::BF16, CacheType::F16}, 0, 0},
                          Case{"deepseek32", 200, 1, {}, 0, 0},  // dense
                          Case{"glm-dsa", 2000, 2, {CacheType::Q8_0, CacheType::Q8_0}, 0, 0},
                          Case{"mamba2", 5000, 2, {}, 0, 0},
                          Case{"lfm2", 3000, 2, {CacheType::Q5_1, CacheType::IQ4_NL}, 0, 0}}) {
        CAPTURE(c.arch);
        CAPTURE(c.window);
        testing::ModelShape shape;
        shape.arch = c.arch, shape.layers = 6, shape.context = 32768;
        shape.heads = 2, shape.kv_heads = 2;  // heads of 32 values: a block of Q8_0
        const testing::TemporaryModel file(shape);
        EngineOptions options;
        options.model = file.path;
        options.threads = 1;
        options.device.device = "cpu";
        options.context = c.context;
        options.sequences = c.sequences;
        options.cache = {.size = 0, .types = c.types, .window = c.window, .sinks = c.sinks};
        Engine engine(options);
        model::Model model = model::build(file.file, c.context);
        if (c.window > 0) model::impose_window(model.program, c.window, c.sinks);
        const MemoryPlan plan =
            memory_plan(model, {.context = c.context, .sequences = c.sequences, .types = c.types});
        CHECK(plan.context == c.context);
        CHECK(plan.cache_at_context == held(engine));
    }
}

TEST_CASE("memory plan: a window bounds the cache, and only full layers grow") {
    testing::ModelShape shape;
    shape.context = 1 << 20;
    const testing::TemporaryModel file(shape);
    model::Model model = model::build(file.file);
    const MemoryPlan full = memory_plan(model, {.context = 131'072});
    // 2 layers, 2 heads, 16 + 16 values of 2 bytes.
    CHECK(full.cache_per_1k == 1024 * 2 * 2 * 32 * 2);
    CHECK(full.cache_at_context == 128 * full.cache_per_1k);
    CHECK(memory_plan(model, {.context = 131'072, .sequences = 4}).cache_at_context ==
          4 * full.cache_at_context);
    model::impose_window(model.program, 512, 0);
    const MemoryPlan windowed = memory_plan(model, {.context = 131'072});
    CHECK(windowed.cache_per_1k == 0);
    CHECK(windowed.cache_at_context < 2 * full.cache_per_1k);
    CHECK(memory_plan(model, {.context = 1 << 20}).cache_at_context == windowed.cache_at_context);
}

}  // namespace
}  // namespace runnel::decode
