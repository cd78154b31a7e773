// Which norms are left to the launches that read them: cuda::plan() on small programs, changed step by step.
#include "kernels/cuda/plan.h"

#include <doctest/doctest.h>

#include <utility>
#include <variant>

#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::tests;
using cuda::LinearOp, cuda::PrepareOp, cuda::TileFormat;

namespace {

const TinyShape kShape = {.layers = 2,
                          .width = 256,
                          .feed_forward = 512,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim_k = 64,
                          .head_dim_v = 64,
                          .type = gguf::Type::Q8_0};

// A program whose steps can be changed.
struct Changed {
    explicit Changed(const TinyShape &shape = kShape) : tiny(shape, 6), program(tiny.program()) {}

    template <class Step>
    size_t find(size_t from = 0) const {
        while (!std::holds_alternative<Step>(program.steps.at(from))) ++from;
        return from;
    }
    Norm &norm() { return std::get<Norm>(program.steps.at(find<Norm>())); }
    // The matrices behind the first norm: q, k and v.
    Linear &queries() { return std::get<Linear>(program.steps.at(find<Norm>() + 1)); }
    // How many of the launches of matrices prepare their input.
    int prepared() const {
        int count = 0;
        for (const cuda::Op &op : cuda::plan(program).ops)
            if (const auto *linear = std::get_if<LinearOp>(&op)) count += linear->prepare_input.has_value();
        return count;
    }
    Slot add_slot(int64_t width) {
        program.slots.push_back({"another", width});
        return static_cast<Slot>(program.slots.size()) - 1;
    }

    TinyProgram tiny;
    Program program;
};

constexpr int kAll = 4;  // q, k and v, gate and up, of two layers

}  // namespace

TEST_CASE(
    "cuda plan: norms are left to the matrices behind them, also where their slot leaves the device later") {
    Changed model;
    CHECK(model.prepared() == kAll);
    // What is handed over is the last norm's result, which has the slot of all.
    const auto end = model.program.steps.size();
    model.program.parts = {{end, {}, {model.norm().out}}};
    CHECK(model.prepared() == kAll);
    // Behind the first matrices it would be the first norm's.
    model.program.parts = {{model.find<Norm>() + 2, {}, {model.norm().out}}, {end, {}, {}}};
    CHECK(model.prepared() == kAll - 1);
}

TEST_CASE("cuda plan: a copy of the norm's input, as heads for drafts take it, changes nothing") {
    Changed model;
    const size_t norm = model.find<Norm>();
    Copy copy{};
    copy.in = model.norm().in;
    copy.out = model.add_slot(256);
    copy.width = 256;
    model.program.steps.insert(model.program.steps.begin() + static_cast<std::ptrdiff_t>(norm) + 1, copy);
    CHECK(model.prepared() == kAll);
    std::swap(copy.in, copy.out);
    model.program.steps[norm + 1] = copy;
    CHECK(model.prepared() == kAll - 1);  // it changes that input
}

TEST_CASE("cuda plan: a norm whose result or input others need is not left to the matrices behind it") {
    Changed floats;  // a matrix in F32 among the readers
    floats.program.weights[static_cast<size_t>(floats.queries().parts[0].weight)].type = gguf::Type::F32;
    CHECK(floats.prepared() == kAll - 1);

    Changed later;  // another reader behind other steps
    const size_t attention = later.find<Attention>();
    Linear again = later.queries();
    again.parts.resize(1);
    again.parts[0].out = later.add_slot(256);
    later.program.steps.insert(later.program.steps.begin() + static_cast<std::ptrdiff_t>(attention) + 1,
                               again);
    CHECK(later.prepared() == kAll - 1);

    Changed overwritten;  // by one of the readers, while the others still read it
    overwritten.queries().parts[0].out = overwritten.norm().in;
    CHECK(overwritten.prepared() == kAll - 1);

    Changed activation;  // by the activation that is part of their launch
    const size_t act = activation.find<Activation>();
    const auto &gate = std::get<Linear>(activation.program.steps[act - 1]);
    REQUIRE(gate.parts.size() == 2);
    std::get<Activation>(activation.program.steps[act]).out =
        std::get<Norm>(activation.program.steps[act - 2]).in;
    CHECK(activation.prepared() == kAll - 1);
}

TEST_CASE("cuda plan: the first router behind a norm prepares it, another one that reads the slot does not") {
    TinyShape shape = kShape;
    shape.layers = 1;
    shape.experts = {.count = 4};
    const auto prepared = [](const Program &program) {
        std::vector<bool> each;
        for (const cuda::Op &op : cuda::plan(program).ops)
            if (const auto *experts = std::get_if<cuda::ExpertsOp>(&op)) {
                REQUIRE(experts->router);
                each.push_back(experts->prepare_input.has_value());
            }
        return each;
    };
    Changed model(shape);
    CHECK(prepared(model.program) == std::vector{true});
    // Once more the same router and experts, as a shared expert with a gate is one.
    const auto at = static_cast<std::ptrdiff_t>(model.find<Experts>());
    const std::vector<Step> both(model.program.steps.begin() + at - 1, model.program.steps.begin() + at + 1);
    model.program.steps.insert(model.program.steps.begin() + at + 1, both.begin(), both.end());
    CHECK(prepared(model.program) == std::vector{true, false});
    model.program.resident_experts = 2;
    CHECK(prepared(model.program) == std::vector{false, false});
}

TEST_CASE("cuda plan: an output matrix in halves adds no form to what other matrices read") {
    Changed model;
    const WeightId logits = std::get<Logits>(model.program.steps.back()).weight;
    model.program.weights[static_cast<size_t>(logits)].type = gguf::Type::F16;
    const cuda::Plan plan = cuda::plan(model.program);
    CHECK(plan.forms.halves);
    CHECK(!plan.prepared.halves);
    CHECK(plan.prepared.integers);
}
