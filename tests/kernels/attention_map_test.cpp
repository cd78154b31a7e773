// Attention weights: the sum of the cached values with these weights is what the CPU's attention kernels computed.
#include "kernels/attention_map.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <stdexcept>
#include <variant>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/window.h"
#include "kernels/device.h"
#include "kernels/whole_text.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::testing;
using kernels::Attention;
using kernels::AttentionMap;

namespace {

constexpr int32_t kTokens = 70;

std::vector<int32_t> sample() {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(3 + i * 7 % 250);
    return tokens;
}

// The rows of one slot before a step and of one slot after it, each [tokens][width].
struct Around {
    std::vector<std::vector<float>> before, after;
};
Around run_around(kernels::Program program, size_t index, kernels::Slot before, kernels::Slot after,
                  std::span<const int32_t> tokens) {
    program.parts = {{index, {}, {}}, {index + 1, {}, {}}, {program.steps.size(), {}, {}}};
    const auto backend = kernels::cpu_device(1)->backend();
    backend->load(program, kernels::cache_of_one(program, kTokens), kTokens);
    kernels::WholeText whole(program, tokens, kTokens, nullptr);
    const auto rows = [&](kernels::Slot slot) {
        const kernels::SlotRows found = backend->exchange(slot);
        std::vector<std::vector<float>> all;
        for (size_t t = 0; t < tokens.size(); ++t) {
            const float *const row = found.data + static_cast<int64_t>(t) * found.stride;
            all.emplace_back(row, row + program.slots[static_cast<size_t>(slot)].width);
        }
        return all;
    };
    Around result;
    REQUIRE(backend->execute(whole.batch, {}));
    result.before = rows(before);
    whole.batch.part = 1;
    REQUIRE(backend->execute(whole.batch, {}));
    result.after = rows(after);
    return result;
}

bool sees(const Attention &step, int32_t query, int32_t key) {
    if (key > query) return false;
    if (step.window == 0 || key < step.sink_cells) return true;
    if (step.window_kind == Attention::Window::Chunked) return key / step.window == query / step.window;
    return query - key < step.window;
}

// Checks every layer with attention; returns how many there are.
size_t check_maps(const kernels::Program &program) {
    const std::vector<int32_t> tokens = sample();
    size_t layers = 0;
    for (size_t i = 0; i < program.steps.size(); ++i) {
        const auto *const step = std::get_if<Attention>(&program.steps[i]);
        if (!step) continue;
        ++layers;
        CAPTURE(step->layer);
        const auto found = kernels::attention_map(program, step->layer, *kernels::cpu_device(1), tokens);
        REQUIRE(found);
        const AttentionMap &map = *found;
        REQUIRE(map.tokens == tokens.size());
        REQUIRE(map.heads == step->heads);
        REQUIRE(map.weights.size() == tokens.size() * tokens.size() * static_cast<size_t>(step->heads));
        // Without values, the first dimensions of the keys are the values.
        const bool latent = step->v == kernels::kNoSlot;
        const auto [values, out] = run_around(program, i, latent ? step->k : step->v, step->out, tokens);
        const auto wide = static_cast<size_t>(latent ? step->head_dim_k : step->head_dim_v),
                   size = static_cast<size_t>(step->head_dim_v);
        const auto group = static_cast<size_t>(step->heads / step->kv_heads);
        double largest = 0, error = 0;
        for (size_t head = 0; head < static_cast<size_t>(step->heads); ++head)
            for (size_t query = 0; query < tokens.size(); ++query) {
                double sum = 0;
                std::vector<double> mixed(size);
                for (size_t key = 0; key < tokens.size(); ++key) {
                    const double weight = map.weight(head, query, key);
                    const bool visible = sees(*step, static_cast<int32_t>(query), static_cast<int32_t>(key));
                    if (visible != (weight > 0))
                        FAIL("a weight outside of the window, or no weight inside it");
                    sum += weight;
                    for (size_t d = 0; d < size; ++d)
                        mixed[d] += weight * double{values[key][head / group * wide + d]};
                }
                if (step->sinks == kernels::kNoWeight)
                    CHECK(sum == doctest::Approx(1).epsilon(1e-9));
                else
                    CHECK(sum < 1);
                for (size_t d = 0; d < size; ++d) {
                    const double computed = double{out[query][head * size + d]};
                    largest = std::max(largest, std::abs(computed));
                    error = std::max(error, std::abs(mixed[d] - computed));
                }
            }
        CAPTURE(error);
        CAPTURE(largest);
        CHECK(largest > 0.01);
        CHECK(error < 4e-3 * largest);  // the kernels round keys and values to F16
    }
    return layers;
}

}  // namespace

TEST_CASE("attention map: the weighted sum of the values is what the kernels computed") {
    for (const char *arch :
         {"llama", "qwen3", "gemma2", "gemma3", "gpt-oss", "llama4", "deepseek2", "lfm2"}) {
        CAPTURE(arch);
        ModelShape shape;
        shape.arch = arch;
        shape.layers = 4;
        shape.sliding_window = 24;
        const TemporaryModel model(shape);
        const model::Model built = model::build(model.file);
        CHECK(check_maps(built.program) > 0);
    }
}

TEST_CASE("attention map: an imposed window with sink tokens is respected") {
    const TemporaryModel model{ModelShape{}};
    model::Model built = model::build(model.file);
    model::impose_window(built.program, 20, 3);
    CHECK(check_maps(built.program) == 2);
}

TEST_CASE("attention map: steps that only append keys are no layers of their own") {
    const TemporaryModel model{ModelShape{}};
    const kernels::Program program = model::build(model.file).program,
                           separate = tests::with_separate_appends(program);
    const auto layers = kernels::attention_layers(program);
    CHECK(kernels::attention_layers(separate).size() == layers.size());
    const std::vector<int32_t> tokens = sample();
    const auto map_of = [&](const kernels::Program &of) {
        return kernels::attention_map(of, layers.back().layer, *kernels::cpu_device(1), tokens)->weights;
    };
    CHECK(map_of(separate) == map_of(program));
}

TEST_CASE("attention map: layers without attention are refused") {
    ModelShape shape;
    shape.arch = "lfm2";
    shape.layers = 4;
    const TemporaryModel model(shape);
    const model::Model built = model::build(model.file);
    const std::vector<int32_t> tokens = sample();
    const auto layers = kernels::attention_layers(built.program);
    REQUIRE(!layers.empty());
    const std::atomic<bool> cancel{true};
    CHECK(!kernels::attention_map(built.program, layers[0].layer, *kernels::cpu_device(1), tokens, &cancel));
    for (int32_t layer = -1; layer <= 4; ++layer)
        if (std::ranges::find(layers, layer, &kernels::AttentionLayer::layer) == layers.end())
            CHECK_THROWS_AS(kernels::attention_map(built.program, layer, *kernels::cpu_device(1), tokens),
                            std::invalid_argument);
}
