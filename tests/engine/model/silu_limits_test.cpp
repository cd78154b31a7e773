// Limits of gated SiLUs: what their keys may hold, and what the steps get.
#include "engine/model/silu_limits.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "engine/model/model.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

constexpr int kLayers = 4;

ModelShape step35() {
    ModelShape shape;
    shape.arch = "step35", shape.layers = kLayers, shape.width = 32, shape.ff = 32, shape.heads = 2,
    shape.kv_heads = 1, shape.vocab = 260, shape.context = 64, shape.experts = {.count = 4, .used = 2};
    return shape;
}

gguf::Array limits(std::vector<float> values) {
    gguf::Array array(gguf::ValueType::F32);
    for (const float value : values) array.push(value);
    return array;
}

// The limits of the experts' steps; 0: an ordinary SiLU.
std::vector<float> of_experts(const gguf::File &file) {
    std::vector<float> found;
    for (const kernels::Step &step : model::build(file).program.steps)
        if (const auto *experts = std::get_if<kernels::Experts>(&step)) {
            const bool limited = experts->act == kernels::Activation::Kind::SiluThenLimit;
            found.push_back(limited ? experts->parameters.positive : 0);
        }
    return found;
}

}  // namespace

TEST_CASE("silu limits: one for all layers or one for each; 0 is none") {
    const std::string key = "step35.swiglu_clamp_exp";
    const auto with = [&](const auto &value) {
        EditedModel model(step35());
        return of_experts(gguf::File::open(model.set(key, value).write()));
    };
    CHECK(with(0.5f) == std::vector<float>(kLayers, 0.5f));
    CHECK(with(0.0f) == std::vector<float>(kLayers, 0));
    CHECK(with(limits({0, 7, 1e-7f, 2})) == std::vector<float>{0, 7, 0, 2});
    EditedModel model(step35());
    model.without(key);
    CHECK(of_experts(gguf::File::open(model.write())) == std::vector<float>(kLayers, 0));
}

TEST_CASE("silu limits: negative or infinite ones, and too many or too few, are refused by key") {
    for (const char *name : {"swiglu_clamp_exp", "swiglu_clamp_shexp"}) {
        const std::string key = std::string("step35.") + name;
        CAPTURE(key);
        const auto error = [&](const auto &value) { return EditedModel(step35()).set(key, value).error(); };
        CHECK(error(limits({1, -1, 1, 1})).find(key + ": has a negative entry") != std::string::npos);
        CHECK(error(-1.0f).find(key) != std::string::npos);
        CHECK(error(limits({1, NAN, 1, 1})).find(key) != std::string::npos);
        CHECK(error(INFINITY).find(key) != std::string::npos);
        CHECK(error(limits({1, 1, 1})).find(key + ": has 3 entries, but there are 4 layers") !=
              std::string::npos);
    }
}
