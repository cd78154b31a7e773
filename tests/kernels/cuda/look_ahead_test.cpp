// Which weights are fetched ahead: by order, share of L2, and kind of the next operation.
#include "kernels/cuda/look_ahead.h"

#include <doctest/doctest.h>

#include <utility>
#include <variant>

#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cuda;
using namespace runnel::tests;

namespace {

struct Model {
    explicit Model(const TinyShape &shape)
        : tiny(shape, 5), plan(cuda::plan(tiny.program())), weights(tiny.program(), plan, {}) {}

    // With so many bytes of L2.
    LinearParams::Ahead first_of(size_t from, size_t l2, bool logits = false) const {
        DeviceProperties device = properties(0);
        device.l2_bytes = l2;
        return LookAhead(tiny.program(), plan, weights, device).first_of(from, plan.ops.size(), logits);
    }
    // The first operation of a kind from `from` on.
    template <class Kind>
    size_t find(size_t from = 0) const {
        while (!std::holds_alternative<Kind>(plan.ops.at(from))) ++from;
        return from;
    }
    const LinearOp &matrices(size_t index) const { return std::get<LinearOp>(plan.ops.at(index)); }
    int64_t bytes(WeightId id) const {
        const Weight &w = tiny.program().weights[static_cast<size_t>(id)];
        return tiled_bytes(tile_format(w.type), w.rows, w.cols);
    }

    TinyProgram tiny;
    Plan plan;
    DeviceWeights weights;
};

constexpr size_t kMuch = size_t{64} << 20;

const TinyShape kDense = {.layers = 2,
                          .width = 256,
                          .feed_forward = 512,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim_k = 64,
                          .head_dim_v = 64,
                          .type = gguf::Type::Q4_K};

}  // namespace

TEST_CASE("look ahead: the next matrices, the first two of a launch, as much as a quarter of L2") {
    const Model model(kDense);
    const size_t first = model.find<LinearOp>();
    const LinearOp &queries = model.matrices(first);
    REQUIRE(queries.parts.size() == 3);
    const WeightId q = queries.parts[0].weight, k = queries.parts[1].weight;

    const LinearParams::Ahead all = model.first_of(0, kMuch);
    CHECK(all.part[0].weights == model.weights.tiles(q));
    CHECK(all.part[0].bytes == model.bytes(q));
    CHECK(all.part[1].weights == model.weights.tiles(k));
    CHECK(all.part[1].bytes == model.bytes(k));

    // A quarter of L2 holds q and 160 bytes of k; or not even q.
    const LinearParams::Ahead some = model.first_of(0, static_cast<size_t>(4 * (model.bytes(q) + 170)));
    CHECK(some.part[0].bytes == model.bytes(q));
    CHECK(some.part[1].bytes == 160);
    const LinearParams::Ahead little = model.first_of(0, 4 * 1000);
    CHECK(little.part[0].bytes == 992);
    CHECK(little.part[1].bytes == 0);
    CHECK(model.first_of(0, 0).part[0].bytes == 0);
}

TEST_CASE("look ahead: of a gate and its matrix both beginnings; behind the last matrices, the logits") {
    const Model model(kDense);
    size_t gated = model.find<LinearOp>();
    while (model.matrices(gated).gate == LinearGate::None) gated = model.find<LinearOp>(gated + 1);
    const LinearParams::Ahead both = model.first_of(gated, 4 * 2000);
    for (const size_t i : {size_t{0}, size_t{1}}) {
        CHECK(both.part[i].weights == model.weights.tiles(model.matrices(gated).parts[i].weight));
        CHECK(both.part[i].bytes >= 992);
        CHECK(both.part[i].bytes <= 1008);
    }
    const size_t end = model.plan.ops.size();
    CHECK(model.first_of(end, kMuch).part[0].bytes == 0);
    const WeightId logits = model.plan.logits->weight;
    CHECK(model.first_of(end, kMuch, true).part[0].weights == model.weights.tiles(logits));
    CHECK(model.first_of(end, kMuch, true).part[0].bytes == model.bytes(logits));
}

TEST_CASE("look ahead: the router before experts, which nothing knows yet, and the next layer behind them") {
    TinyShape shape = kDense;
    shape.experts = {.count = 4};
    const Model model(shape);
    const size_t experts = model.find<ExpertsOp>();
    const auto &op = std::get<ExpertsOp>(model.plan.ops.at(experts));
    REQUIRE(op.router);
    const WeightId router = op.router->parts[0].weight;
    CHECK(model.first_of(experts, kMuch).part[0].weights == model.weights.tiles(router));
    CHECK(model.first_of(experts, kMuch).part[0].bytes == model.bytes(router));
    CHECK(model.first_of(experts, kMuch).part[1].weights == nullptr);
    const size_t next = model.find<LinearOp>(experts);
    const LinearParams::Ahead ahead = model.first_of(experts + 1, kMuch);
    CHECK(ahead.part[0].weights == model.weights.tiles(model.matrices(next).parts[0].weight));
    CHECK(ahead.part[0].bytes > 0);
}
