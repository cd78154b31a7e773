// Families with experts: their routing metadata, and the bytes read per token.
#include "engine/model/experts.h"

#include <doctest/doctest.h>

#include <string>
#include <variant>
#include <vector>

#include "engine/model/model.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::testing;

namespace {

template <typename T>
std::vector<T> steps_of(const Program &program) {
    std::vector<T> found;
    for (const Step &step : program.steps)
        if (const auto *s = std::get_if<T>(&step)) found.push_back(*s);
    return found;
}

ModelShape family_shape(const std::string &name) {
    ModelShape shape;
    shape.arch = name;
    return shape;
}

}  // namespace

// Expected values: the models' own code (transformers and the vendors' reference implementations).
TEST_CASE("experts: each family chooses and weights them as published") {
    using Score = Routing::Score;
    struct Expected {
        const char *family;
        Score score;
        bool normalize, selection_bias;
    };
    for (const Expected &e : {Expected{"mixtral", Score::Softmax, true, false},
                              {"qwen2moe", Score::Softmax, false, false},
                              {"qwen3moe", Score::Softmax, true, false},
                              {"olmoe", Score::Softmax, false, false},
                              {"gpt-oss", Score::SelectedSoftmax, false, false},
                              {"glm4moe", Score::Sigmoid, true, true},
                              {"granitemoe", Score::Softmax, true, false},
                              {"minimax-m2", Score::Sigmoid, true, true},
                              {"ernie4_5-moe", Score::Softmax, true, true},
                              {"hunyuan-moe", Score::Softmax, true, false},
                              {"llama4", Score::Sigmoid, false, false},
                              {"gemma4-26b", Score::Softmax, true, false},
                              {"deepseek2-lite", Score::Softmax, false, false},
                              {"deepseek2", Score::Sigmoid, true, true},
                              {"deepseek4", Score::SqrtSoftplus, true, false}}) {
        CAPTURE(e.family);
        const TemporaryModel file(family_shape(e.family));
        const model::Model model = model::build(file.file);
        const Experts step = steps_of<Experts>(model.program).front();
        CHECK(step.routing.score == e.score);
        CHECK(step.routing.normalize == e.normalize);
        CHECK((step.routing.selection_bias != kNoWeight) == e.selection_bias);
        CHECK(step.routing.used == 2);
        CHECK(model.program.weights[static_cast<size_t>(step.down)].count == 8);
    }
}

TEST_CASE(
    "experts: one token reads its chosen experts, all other weights once, and one row of the embeddings") {
    for (const FamilyFiles &family : family_files()) {
        if (!family.experts || (family.latent && family.latent->joint)) continue;
        // They read matrices that no file holds, and rows of a second table.
        if (family.qwen4 || family.deepseek4) continue;
        CAPTURE(family.name);
        ModelShape shape = family_shape(family.name);
        if (!family.experts->biases && !family.experts->dense_too) shape.experts.leading_dense = 1;
        const TemporaryModel made(shape);
        const model::Model model = model::build(made.file);
        size_t expected = 0;
        for (const gguf::Tensor &t : made.file.tensors()) {
            const bool kept = t.name != "rope_freqs.weight" && t.name.find("output_scale") == t.name.npos &&
                              t.name.find(".indexer.") == t.name.npos;
            if (t.name == "token_embd.weight")
                expected += gguf::row_bytes(t.type, t.shape[0]) + (family.tied ? t.bytes : 0);
            else if (t.name.find("_exps.") != t.name.npos && t.name.find("norm_exps.") == t.name.npos)
                expected += t.bytes / 8 * 2;
            else if (kept)  // the others are constants of the program
                expected += t.bytes;
        }
        if (family.name == "llama4") expected += 2 * 2 * 16 * sizeof(float);  // q and k: norms of ones
        // Ones that repeat the gates of 4 heads in the first layer and of 8 in the second; of 8 in both.
        if (family.name == "laguna") expected += (4 + 8) * 16 * sizeof(float);
        if (family.name == "step35") expected += (8 + 8) * 16 * sizeof(float);
        // Decay rates, and norms that are computed a second time for the residual stream.
        if (family.name == "minimax-01") expected += 2 * (4 + 2 * 64) * sizeof(float);
        CHECK(model.program.weight_bytes_per_token() == expected);
    }
}

TEST_CASE("experts: a shared expert with a gate becomes a mixture of one expert") {
    const TemporaryModel file(family_shape("qwen2moe"));
    const Program program = model::build(file.file).program;
    const std::vector<Experts> steps = steps_of<Experts>(program);
    REQUIRE(steps.size() == 4);  // of two layers
    CHECK(program.weights[static_cast<size_t>(steps[1].down)].count == 1);
    CHECK(steps[1].routing.score == Routing::Score::Sigmoid);
    CHECK(steps[1].routing.used == 1);
    CHECK(steps[1].add == steps[0].out);
}

TEST_CASE("experts: groups that do not fit the experts are refused by key") {
    const auto error = [](int64_t groups, int64_t used) -> std::string {
        ModelShape shape = family_shape("deepseek2");
        shape.experts.groups = groups, shape.experts.groups_used = used;
        const TemporaryModel file(shape);
        try {
            model::build(file.file);
        } catch (const model::ModelError &problem) {
            return problem.what();
        }
        return {};
    };
    CHECK(error(4, 2).empty());
    CHECK(error(3, 2).find("deepseek2.expert_group_count: does not divide") != std::string::npos);
    CHECK(error(8, 4).find("deepseek2.expert_group_count: leaves fewer than two") != std::string::npos);
    CHECK(error(4, 5).find("deepseek2.expert_group_used_count: is not between") != std::string::npos);
    CHECK(error(4, 0).find("deepseek2.expert_group_used_count: is not between") != std::string::npos);
}

// Both file forms lead to the same heads, so attention reads cells of the same shape.
TEST_CASE("latent attention: one narrow head is cached, for both forms of files") {
    for (const char *family : {"deepseek2", "deepseek2-joint", "deepseek2-lite"}) {
        CAPTURE(family);
        const TemporaryModel file(family_shape(family));
        const Program program = model::build(file.file).program;
        for (const CacheLayer &layer : program.cache_layers) {
            CHECK(layer.kv_heads == 1);
            CHECK(layer.head_dim_k == 64 + 16);
            CHECK(layer.head_dim_v == 0);
        }
        const std::vector<HeadLinear> heads = steps_of<HeadLinear>(program);
        REQUIRE(heads.size() == 4);
        CHECK(program.weights[static_cast<size_t>(heads[0].weight)].rows == 64);
        CHECK(program.weights[static_cast<size_t>(heads[1].weight)].cols == 64);
        CHECK(program.ropes.front().first == 64);
    }
}
