// The choices of experts, and what the simulation counts from them, compared with what an (emulated) GPU fetches.
#include "engine/measure/fetched_experts.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::measure;
using namespace runnel::tests;

namespace {

TinyShape mixture() {
    TinyShape shape;
    shape.width = 64, shape.feed_forward = 32, shape.type = gguf::Type::Q8_0;
    shape.experts.count = 10;
    shape.experts.routing.used = 3;
    shape.experts.selection_bias = shape.experts.biases = true;
    return shape;
}

}  // namespace

TEST_CASE("fetched experts: the simulation fetches as many experts as a GPU does") {
    const TinyProgram tiny(mixture(), 21);
    const std::vector<int32_t> tokens = random_tokens(30, tiny.program().vocab, 5);
    const Logits2 expected = Runner(kernels::cuda::make_cuda_backend(0), tiny.program()).run(tokens, 1);
    for (const int32_t places : {3, 5, 9}) {
        CAPTURE(places);
        kernels::Program program = tiny.program();
        program.resident_experts = places;
        const auto trace = std::make_shared<ExpertTrace>();
        Runner runner(kernels::trace_experts(kernels::cuda::make_cuda_backend(0), trace), program);
        check_equal(expected, runner.run(tokens, 1), "with and without a trace");
        REQUIRE(trace->tokens() == tokens.size());
        REQUIRE(trace->mixtures.size() == 2);
        const kernels::ExpertTraffic traffic = runner.backend().expert_traffic();
        const PlacesUse use = simulate_places(*trace, places, 0);
        const auto all = static_cast<double>(tokens.size());
        CHECK(use.chosen * all == doctest::Approx(static_cast<double>(traffic.chosen)));
        CHECK(use.fetched * all == doctest::Approx(static_cast<double>(traffic.fetched)));
        CHECK(use.held_bytes == 2 * static_cast<size_t>(places) * trace->mixtures[0].expert_bytes);
    }
}

TEST_CASE(
    "fetched experts: choices are those of each token, in any batches, and the first tokens can be left "
    "out") {
    const TinyProgram tiny(mixture(), 8);
    const std::vector<int32_t> tokens = random_tokens(40, tiny.program().vocab, 3);
    const auto traced = [&](size_t chunk) {
        const auto trace = std::make_shared<ExpertTrace>();
        Runner(kernels::trace_experts(kernels::cpu::make_cpu_backend(1), trace), tiny.program())
            .run(tokens, chunk);
        return *trace;
    };
    const ExpertTrace one = traced(1), many = traced(16);
    for (size_t i = 0; i < one.mixtures.size(); ++i) {
        CHECK(one.mixtures[i].chosen == many.mixtures[i].chosen);
        CHECK(one.mixtures[i].used == 3);
    }
    CHECK(one.most_experts() == 10);
    CHECK(one.most_used() == 3);
    // With a place for every expert, each is fetched once, most of them for the first tokens.
    CHECK(simulate_places(one, 10, 0).fetched * 40 <= 2 * 10 + 1e-9);
    CHECK(simulate_places(one, 10, 39).fetched == 0);
    CHECK(simulate_places(one, 1, 0).held_bytes == simulate_places(one, 3, 0).held_bytes);
    for (int32_t places = 3; places < 10; ++places)
        CHECK(simulate_places(one, places, 10).fetched >= simulate_places(one, places + 1, 10).fetched);
}
