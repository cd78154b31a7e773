#include "engine/measure/block_cost.h"

#include <doctest/doctest.h>

#include <vector>

#include "gguf/base/interrupted.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::measure;
using doctest::Approx;

TEST_CASE("block cost: the bound of the gain follows from the costs") {
    const BlockCost cost{{1, 1.5, 2, 3}, 0.25, {0.1, 0.2, 0.3, 0.4}, 0, 0};
    // All accepted: n + 1 tokens for a pass, n steps, and catching up for n + 1 tokens.
    CHECK(block_gain(cost, 1, 1) == Approx(2 / (1.5 + 0.25 + 0.2)));
    CHECK(block_gain(cost, 1, 3) == Approx(4 / (3 + 0.75 + 0.4)));
    BlockCost at_once = cost;
    at_once.at_once = true;
    CHECK(block_gain(at_once, 1, 3) == Approx(4 / (3 + 0.25 + 0.4)));
    CHECK(block_gain(cost, 0, 2) == Approx(1 / (2 + 0.5 + 0.1)));
    // 1 + a + a^2 tokens; the cost of catching up lies between those of 1 and 2 tokens.
    CHECK(block_gain(cost, 0.5, 2) == Approx(1.75 / (2 + 0.5 + 0.175)));
    for (int32_t length = 1; length < kBlockRows; ++length)
        for (int i = 0; i < 10; ++i)
            CHECK(block_gain(cost, i / 10.0, length) < block_gain(cost, (i + 1) / 10.0, length));
}

TEST_CASE("block cost: measured on a model with a draft block, until a stop") {
    testing::ModelShape shape;
    shape.arch = "qwen35", shape.layers = 3, shape.draft_block = true;
    const testing::TemporaryModel model(shape);
    decode::Engine engine({.model = model.path, .threads = 1, .context = 200, .mtp = decode::Mtp::On});
    REQUIRE(!engine.draft_blocks().empty());
    decode::StopRequest stop;
    const BlockCost cost = measure_block(engine, {5, 6, 7}, 4, stop);
    CHECK(cost.passes[0] == 1);
    CHECK(cost.step > 0);
    CHECK(cost.step_seconds > 0);
    CHECK(cost.plain_seconds > 0);
    for (const double seconds : cost.catch_up) CHECK(seconds > 0);
    stop.request(decode::StopRequest::Reason::Interrupt);
    CHECK_THROWS_AS(measure_block(engine, {5, 6, 7}, 4, stop), base::Interrupted);
}
