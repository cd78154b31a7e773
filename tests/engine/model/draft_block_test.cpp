#include "engine/model/draft_block.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/draft_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

constexpr int64_t kWidth = kDraftWidth, kVocab = kDraftVocab;
constexpr int32_t kTokens = 40;

std::vector<int32_t> ids() {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(i);
    return tokens;
}

std::span<const float> row(const std::vector<float> &logits, int32_t token) {
    return std::span(logits).subspan(static_cast<size_t>(token) * kVocab, kVocab);
}

double difference(std::span<const float> a, std::span<const float> b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
    return most;
}

int64_t best(std::span<const float> logits) {
    return std::ranges::max_element(logits) - logits.begin();
}

// Any values, as the hidden states before the tokens of ids(): [kTokens][kWidth].
std::vector<float> some_states() {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<float> states(kTokens * kWidth);
    for (float &x : states) x = normal(rng);
    return states;
}

// The block's logits for ids() after these hidden states.
std::vector<float> logits_of(kernels::Backend &backend, const kernels::Program &block,
                             std::span<const float> states) {
    backend.load(block, {.blocks = {2}, .context = 2 * kernels::kBlockTokens}, kTokens);
    const kernels::SlotRows rows = backend.exchange(block.parts.at(0).in.at(0));
    for (int64_t t = 0; t < kTokens; ++t)
        std::copy_n(states.data() + t * kWidth, kWidth, rows.data + t * rows.stride);
    const kernels::BlockId table[] = {0, 1};
    const kernels::SequenceSpan span{0, kTokens, 0, {table}};
    std::vector<float> logits(kTokens * kVocab);
    REQUIRE(backend.execute({ids(), ids(), {&span, 1}, ids()}, logits));
    return logits;
}
std::vector<float> logits_of(const kernels::Program &block, std::span<const float> states) {
    return logits_of(*kernels::cpu::make_cpu_backend(1), block, states);
}

}  // namespace

TEST_CASE("draft block: its logits are those of one layer over the projected embeddings and hidden states") {
    using reference::rms_norm;
    using reference::to_row;
    for (const char *arch : kDraftArchs)
        for (const bool own_matrices : {false, true}) {
            CAPTURE(arch);
            CAPTURE(own_matrices);
            DraftModel model(arch);
            const std::vector<float> states = some_states();
            if (own_matrices) {
                model.add("blk.2.nextn.embed_tokens.weight", {kWidth, kVocab}, 0, 1);
                model.add("blk.2.nextn.shared_head_head.weight", {kWidth, kVocab}, 0, 0.4f);
            } else {
                model.tensors.erase("blk.2.nextn.shared_head_norm.weight");
                model.add("output_norm.weight", {kWidth}, 1, 0.3f);
            }
            const gguf::File file = model.write();
            const double eps = double{model::read_hyper_parameters(file).norm_epsilon};
            const auto program = model::draft_block(file);
            REQUIRE(program);
            const std::vector<float> got = logits_of(*program, states);

            const auto weights = [&](const std::string &name) { return to_row(model.tensors.at(name).all); };
            const auto embedded = [&](const std::string &table, int32_t id) {
                const std::span<const float> all = model.tensors.at(table).all;
                return to_row(all.subspan(static_cast<size_t>(id) * kWidth, kWidth));
            };
            const std::string of_token =
                own_matrices ? "blk.2.nextn.embed_tokens.weight" : "token_embd.weight";
            const reference::Row project = weights("blk.2.nextn.eh_proj.weight");
            DraftModel::Values inputs{{kWidth, kVocab}, std::vector<float>(kWidth * kVocab)};
            for (int32_t p = 0; p < kTokens; ++p) {
                reference::Row both =
                    rms_norm(embedded(of_token, p), weights("blk.2.nextn.enorm.weight"), eps);
                reference::Row before =
                    to_row(std::span(states).subspan(static_cast<size_t>(p) * kWidth, kWidth));
                before = rms_norm(before, weights("blk.2.nextn.hnorm.weight"), eps);
                both.insert(both.end(), before.begin(), before.end());
                for (size_t i = 0; i < size_t{kWidth}; ++i)
                    inputs.all[static_cast<size_t>(p) * kWidth + i] = static_cast<float>(
                        reference::dot(std::span(project).subspan(i * 2 * kWidth, 2 * kWidth), both));
            }
            std::map<std::string, DraftModel::Values> one;
            for (const auto &[name, values] : model.tensors)
                if (name.starts_with("blk.2.") && name.find("nextn") == std::string::npos)
                    one["blk.0." + name.substr(6)] = values;
            one["token_embd.weight"] = inputs;
            one["output_norm.weight"] =
                model.tensors.at(own_matrices ? "blk.2.nextn.shared_head_norm.weight" : "output_norm.weight");
            one["output.weight"] =
                model.tensors.at(own_matrices ? "blk.2.nextn.shared_head_head.weight" : "output.weight");
            model.tensors = std::move(one);
            const gguf::File single = model.write("single.gguf", 1, 0);
            const std::vector<float> expected =
                kernels::reference::logits_of(model::build(single).program, ids());
            CHECK(difference(got, expected) < 2e-2);
            CHECK(difference(row(got, 0), row(got, kTokens - 1)) > 0.5);
        }
}

TEST_CASE("draft block: one that knows the model's rule predicts every token") {
    for (const char *arch : kDraftArchs) {
        CAPTURE(arch);
        DraftModel model(arch);
        model.obey_rule();
        const gguf::File file = model.write();
        const auto block = model::draft_block(file);
        REQUIRE(block);
        const std::vector<float> own = kernels::reference::logits_of(model::build(file).program, ids()),
                                 drafted = logits_of(*block, some_states());
        for (int32_t p = 0; p < kTokens; ++p) CHECK(best(row(drafted, p)) == best(row(own, p)));
    }
}

TEST_CASE("draft block: on the (emulated) GPU its logits agree with the CPU's") {
    for (const char *arch : {"glm4moe", "qwen35moe"}) {
        CAPTURE(arch);
        const DraftModel model(arch);
        const gguf::File file = model.write();
        const auto block = model::draft_block(file);
        REQUIRE(block);
        for (const std::string &why : kernels::cuda::missing_kernels(*block)) REQUIRE(why == "");
        const std::vector<float> exact = logits_of(*block, some_states());
        CHECK(difference(logits_of(*kernels::cuda::make_cuda_backend(0), *block, some_states()), exact) <
              5e-2);
    }
}

TEST_CASE("draft block: none without its tensors, with several, or in a family without one") {
    CHECK_FALSE(model::draft_block(TemporaryModel(ModelShape{}).file));
    for (const char *arch : kDraftArchs) {
        CAPTURE(arch);
        DraftModel model(arch);
        CHECK_FALSE(model::draft_block(model.write("two.gguf", 3, 2)));
        DraftModel broken = model;
        broken.tensors.erase("blk.2.nextn.eh_proj.weight");
        CHECK_FALSE(model::draft_block(broken.write("trunk.gguf", 3, 1)));
        broken = model;
        broken.add("blk.2.nextn.eh_proj.weight", {kWidth, kWidth}, 0, 1);
        CHECK_THROWS_WITH_AS(model::draft_block(broken.write("narrow.gguf", 3, 1)),
                             doctest::Contains("nextn.eh_proj.weight"), model::ModelError);
        broken = model;
        broken.tensors.erase("blk.2.nextn.enorm.weight");
        CHECK_THROWS_WITH_AS(model::draft_block(broken.write("missing.gguf", 3, 1)),
                             doctest::Contains("nextn.enorm.weight: missing"), model::ModelError);
    }
}
