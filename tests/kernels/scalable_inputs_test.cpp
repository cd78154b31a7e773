// Which inputs of matrices can be scaled, on small programs. (tests/engine/commands/awq_sites_test.cpp scales all
// families.)
#include "kernels/scalable_inputs.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace runnel::kernels;

namespace {

enum : Slot { kIn, kHidden, kGate, kUp, kQ, kK, kV, kOut, kSlots };

// Steps on slots of width 4; weights have no data. The input of the last matrix is looked at.
struct Steps {
    Program program;

    Steps() {
        for (int i = 0; i < kSlots; ++i) program.slots.push_back({"", 4});
        program.weights.assign(9, {"w", runnel::gguf::Type::F32, 4, 4, nullptr});
        add(Embed{0, kIn});
    }
    Steps &add(Step step) {
        program.steps.push_back(std::move(step));
        return *this;
    }
    Steps &norm(Slot from, Slot to) { return add(Norm{from, to, 1, 1e-5f}); }
    Steps &matrix(Slot from, Slot to, WeightId weight = 2, Slot plus = kNoSlot) {
        return add(Linear{from, {{weight, kNoWeight, to, plus}}});
    }
    Steps &attend(int32_t cache = 0, Slot k = kK, Slot v = kV) {
        Attention step{kQ, k, v, kOut, cache, 2, 1, 2, 2, 1};
        return add(step);
    }
    // The input of the last matrix.
    ScalableInput last() const {
        const auto inputs = scalable_inputs(program);
        REQUIRE(!inputs.empty());
        return inputs.back();
    }
};

Activation gated(Activation::Kind kind) {
    return Activation{kGate, kUp, kHidden, kind};
}

}  // namespace

TEST_CASE("scalable inputs: a norm's output that only matrices read") {
    const ScalableInput input = Steps().norm(kIn, kHidden).matrix(kHidden, kOut).last();
    CHECK(input.obstacle == "");
    CHECK(input.makers.size() == 1);
    CHECK(input.makers[0].weight == 1);
    CHECK_FALSE(input.makers[0].is_matrix);
    CHECK(input.readers == std::vector<size_t>{2});
    // Two steps read it: one input.
    const Steps two = Steps().norm(kIn, kHidden).matrix(kHidden, kGate).matrix(kHidden, kUp, 3);
    CHECK(scalable_inputs(two.program).size() == 1);
    CHECK(two.last().matrices == std::vector<WeightId>{2, 3});
    CHECK(
        Steps().norm(kIn, kHidden).matrix(kHidden, kOut).matrix(kHidden, kOut, 3, kHidden).last().obstacle ==
        "it is also read by a residual sum");
    CHECK(Steps().norm(kIn, kHidden).norm(kHidden, kOut).matrix(kHidden, kUp).last().obstacle ==
          "it is also read by a norm");
    Steps added;
    added.add(Norm{kIn, kHidden, 1, 1e-5f, Norm::Kind::Rms, kNoWeight, kIn}).matrix(kHidden, kOut);
    CHECK(added.last().obstacle == "a norm adds it to the residual sum");
    Steps heads;
    heads.add(Norm{kIn, kHidden, 1, 1e-5f, Norm::Kind::Rms, kNoWeight, kNoSlot, 2}).matrix(kHidden, kOut);
    CHECK(heads.last().obstacle == "it is made by a norm whose weight the heads share");
    CHECK(Steps().matrix(kIn, kOut).last().obstacle == "it is made by the token table");
    // A slot that is written again holds another content.
    CHECK(Steps()
              .norm(kIn, kHidden)
              .matrix(kHidden, kOut)
              .norm(kOut, kHidden)
              .norm(kHidden, kUp)
              .last()
              .obstacle == "");
}

TEST_CASE("scalable inputs: through an activation that is linear in up") {
    const auto with = [](Activation::Kind kind) {
        return Steps().matrix(kIn, kGate).matrix(kIn, kUp, 3).add(gated(kind)).matrix(kHidden, kOut).last();
    };
    const ScalableInput input = with(Activation::Kind::Silu);
    CHECK(input.obstacle == "");
    CHECK(input.makers[0].weight == 3);
    CHECK(input.makers[0].is_matrix);
    for (const auto kind :
         {Activation::Kind::SiluClamped, Activation::Kind::SiluThenLimit, Activation::Kind::LimitThenSilu})
        CHECK(with(kind).obstacle == "the activation before it is not linear");
    const auto alone = [](Activation::Kind kind) {
        return Steps()
            .matrix(kIn, kGate)
            .add(Activation{kGate, kNoSlot, kHidden, kind})
            .matrix(kHidden, kOut)
            .last();
    };
    CHECK(alone(Activation::Kind::Relu).obstacle == "");
    CHECK_FALSE(alone(Activation::Kind::Relu).is_squared);
    CHECK(alone(Activation::Kind::ReluSquared).is_squared);
    CHECK(alone(Activation::Kind::GeluTanh).obstacle == "the activation before it is not linear");
    CHECK(Steps()
              .matrix(kIn, kGate)
              .matrix(kIn, kUp, 3)
              .norm(kUp, kQ)
              .add(gated(Activation::Kind::Silu))
              .matrix(kHidden, kOut)
              .last()
              .obstacle == "the values it is made from are also read by a norm");
    // Part of a residual sum, or from one matrix that also makes the gate.
    CHECK(Steps()
              .matrix(kIn, kGate)
              .matrix(kIn, kUp, 3, kIn)
              .add(gated(Activation::Kind::Silu))
              .matrix(kHidden, kOut)
              .last()
              .obstacle == "it is part of the residual sum");
    CHECK(Steps()
              .add(Linear{kIn, {{2, kNoWeight, kGate, kNoSlot}, {2, kNoWeight, kUp, kNoSlot}}})
              .add(gated(Activation::Kind::Silu))
              .matrix(kHidden, kQ)
              .last()
              .obstacle == "the matrix that makes it also makes other values");
}

TEST_CASE("scalable inputs: through attention, whose query heads share values") {
    const auto start = [] { return Steps().matrix(kIn, kQ).matrix(kIn, kK, 3).matrix(kIn, kV, 4); };
    const ScalableInput input = start().attend().matrix(kOut, kIn, 5).last();
    CHECK(input.obstacle == "");
    CHECK(input.makers[0].weight == 4);
    CHECK(input.channels == 2);
    CHECK(input.channel_of == std::vector<int32_t>{0, 1, 0, 1});
    CHECK(start().attend(0, kK, kK).matrix(kOut, kIn, 5).last().obstacle ==
          "keys or queries are the same numbers as its values");
    CHECK(start().attend(0, kK, kNoSlot).matrix(kOut, kIn, 5).last().obstacle ==
          "attention takes its values from keys");
    Steps shared = start().attend().matrix(kOut, kIn, 5);
    shared.attend(0, kNoSlot, kNoSlot);
    CHECK(scalable_inputs(shared.program).back().obstacle == "several layers attend to its values");
}
