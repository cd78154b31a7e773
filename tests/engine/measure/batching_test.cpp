// What bench --batching computes when several requests run at a time.
#include "engine/measure/batching.h"

#include <doctest/doctest.h>

#include "tests/support/demo_model.h"

namespace runnel::measure {

TEST_CASE("batching: no test finds the prompts of another one in the cache") {
    const decode::StopRequest stop;
    decode::EngineOptions options;
    options.model = testing::demo_model();
    options.threads = 1;
    options.context = 96;
    options.sequences = 2;
    decode::Engine engine(options);
    for (const uint32_t number : {0u, 1u, 2u}) {
        const BatchingRow row = measure_batching(
            engine, {.parallel = 2, .requests = 3, .prompt = 70, .generate = 2, .prompts = number}, stop);
        CHECK(row.requests.size() == 3);
    }
    CHECK(engine.executor().cache().statistics().reused_tokens == 0);
    // The same prompts again are found in the cache, which shows that the count works.
    measure_batching(engine, {.parallel = 1, .requests = 1, .prompt = 70, .generate = 2, .prompts = 2}, stop);
    CHECK(engine.executor().cache().statistics().reused_tokens > 0);
}

}  // namespace runnel::measure
