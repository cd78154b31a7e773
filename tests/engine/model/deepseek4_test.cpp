// deepseek4 (DeepSeek-V4): residual streams with Sinkhorn's mixes, attention to a window and to keys that stand for blocks of
// tokens, and experts chosen by token ids. The whole model is held against llama.cpp with all families (families_test.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/window.h"
#include "kernels/reference/operations.h"
#include "tests/engine/model/sparse_models.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::testing;
using namespace runnel::tests::sparse;
using tests::RecurrentTexts;

namespace {

constexpr int64_t kBlock = 4;

// Layers with the window only, with keys for 4 tokens that an indexer chooses, and with keys for 128 tokens.
ModelShape small(int64_t top_k, uint64_t seed = 1) {
    ModelShape shape = shape_of("deepseek4", top_k, 1, seed);
    shape.layers = 3;
    return shape;
}

template <class S>
int64_t count_steps(const Program &program) {
    int64_t count = 0;
    for_each_step<S>(program, [&](const S &) { ++count; });
    return count;
}

}  // namespace

TEST_CASE("deepseek4: streams are mixed by matrices whose rows and columns sum to 1") {
    std::mt19937 random(1);
    std::normal_distribution<double> normal(0, 2);
    const size_t n = 4;
    StreamWeights step{.in = 0, .read = 1, .mix = 2, .scales = 0, .bias = 1, .eps = 1e-6f, .iterations = 200};
    reference::Row in(n * (n + 2)), bias(in.size());
    for (double &x : in) x = normal(random);
    for (double &x : bias) x = normal(random);
    const reference::Row scales = {0.5, 1, 2};
    const auto [read, mix] = reference::stream_weights(step, n, in, scales, bias);
    REQUIRE(mix.size() == n * (n + 1));
    for (size_t j = 0; j < n; ++j) {
        double to = 0, from = 0;
        for (size_t i = 0; i < n; ++i) to += mix[j * (n + 1) + i], from += mix[i * (n + 1) + j];
        CHECK(to == doctest::Approx(1).epsilon(1e-4));
        CHECK(from == doctest::Approx(1).epsilon(1e-4));
        CHECK(read[j] == doctest::Approx(1 / (1 + std::exp(-0.5 * in[j] - bias[j]))).epsilon(1e-5));
        CHECK(mix[j * (n + 1) + n] == doctest::Approx(2 / (1 + std::exp(-in[n + j] - bias[n + j]))));
    }
}

TEST_CASE("deepseek4: as long as a token sees all blocks, logits have the bits of dense attention") {
    const TemporaryModel file(small(48));
    const Program dense = model::build(file.file, 51).program, sparse = model::build(file.file, 52).program;
    CHECK(count_indexers(dense) == 0);
    CHECK(count_indexers(sparse) == 1);
    CHECK(count_indexers(model::build(file.file).program) == 1);
    CHECK(count_steps<JoinAttention>(dense) == 2);
    CHECK(count_steps<SoftPool>(sparse) == 3);
    for_each_step<Indexer>(sparse, [](const Indexer &step) { CHECK(step.all_cells() == 51); });
    std::mt19937 random(2);
    check_same_programs(dense, sparse, tests::random_texts({51, 33, 48}, 260, random), random);
}

TEST_CASE("deepseek4: batches, chunks, roll-backs, threads and instruction sets change no bit") {
    std::mt19937 random(3);
    for (const auto &[top_k, type] :
         {std::pair{8, CacheType::F16}, {8, CacheType::Q8_0}, {400, CacheType::F16}}) {
        ModelShape shape = small(top_k);
        shape.experts.used = 2;
        const TemporaryModel file(shape);
        const Program program = model::build(file.file, kLong).program;
        const RecurrentTexts texts(program, tests::random_texts({140, 21}, 260, random));
        const auto expected = run(program, texts, 1, "scalar", nullptr, type);
        for (const std::string &isa : instruction_sets()) {
            CAPTURE(isa);
            tests::check_same(run(program, texts, 3, isa, &random, type), expected);
        }
    }
}

TEST_CASE("deepseek4: logits agree with double precision, and differ from dense ones beyond top_k") {
    for (const int64_t top_k : {8, 20}) {
        CAPTURE(top_k);
        const TemporaryModel file(small(top_k, static_cast<uint64_t>(top_k))),
            other(small(400, static_cast<uint64_t>(top_k)));
        const Program program = model::build(file.file, kLong).program,
                      dense = model::build(other.file, 400).program;
        std::mt19937 random(4);
        check_sparse_logits(program, dense, tests::random_texts({140}, 260, random)[0],
                            static_cast<size_t>(top_k + kBlock) - 1);
    }
}

// With blocks of 8 in the last layer, which files of the published models do not have, few tokens reach every kind of key.
TEST_CASE(
    "deepseek4: the emulated GPU agrees with double precision, with the same bits whatever the chunks and "
    "roll-backs") {
    EditedModel edited(small(8));
    edited.set("deepseek4.attention.compress_ratios",
               gguf::Array(std::span<const uint32_t>(std::vector<uint32_t>{0, 4, 8})));
    std::vector<float> places(8 * 8);
    for (size_t i = 0; i < places.size(); ++i) places[i] = 0.1f * static_cast<float>(i % 7);
    edited.values("blk.2.attn_compressor_ape.weight", {8, 8}, places);
    const gguf::File file = gguf::File::open(edited.write());
    const Program program = model::build(file, 100).program;
    std::mt19937 random(8);
    const auto text = tests::random_texts({20, 9}, 260, random);
    const RecurrentTexts texts(program, text);
    const auto gpu = run(kGpu.make(), program, texts, nullptr);
    tests::check_same(run(kGpu.make(), program, texts, &random), gpu);
    for (size_t i = 0; i < text.size(); ++i) {
        const auto expected = tests::reference_logits(program, text[i]);
        size_t close = 0;  // tokens before the first for which rounding chooses another block
        const auto is_close = [&](size_t t) {
            double error = 0;
            for (size_t v = 0; v < expected[t].size(); ++v)
                error = tests::larger(error, std::fabs(double{gpu[i][t][v]} - expected[t][v]));
            return error < 0.02;
        };
        while (close < text[i].size() && is_close(close)) ++close;
        CHECK(close >= std::min<size_t>(text[i].size(), 16));
    }
}

TEST_CASE("deepseek4: a token's id chooses the experts of the first layer") {
    ModelShape shape = small(400);
    shape.layers = 1, shape.experts.used = 2;
    const TemporaryModel file(shape);
    const gguf::Tensor *table = file.file.find_tensor("blk.0.ffn_gate_tid2eid.weight");
    REQUIRE(table != nullptr);
    Program program = model::build(file.file).program;
    for_each_step<Experts>(program, [&](const Experts &step) {
        REQUIRE(step.chosen != kNoSlot);
        CHECK(step.routing.score == Routing::Score::SqrtSoftplus);
        for_each_step<Embed>(program, [&](const Embed &embed) {
            if (embed.out != step.chosen) return;
            const Weight &sorted = program.weights[static_cast<size_t>(embed.table)];
            CHECK(sorted.rows == 260);
            for (int64_t token = 0; token < sorted.rows; ++token) {
                int32_t of_file[2];
                float got[2];
                std::memcpy(of_file, table->data + token * 8, sizeof of_file);
                std::memcpy(got, sorted.data + token * 8, sizeof got);
                std::sort(of_file, of_file + 2);
                CHECK(got[0] == static_cast<float>(of_file[0]));
                CHECK(got[1] == static_cast<float>(of_file[1]));
            }
        });
    });
}

TEST_CASE("deepseek4: a draft block in the file is ignored") {
    ModelShape shape = small(16);
    shape.draft_block = true;
    const TemporaryModel file(shape);
    CHECK(file.file.find_tensor("blk.3.nextn.eh_proj.weight") != nullptr);
    CHECK(model::build(file.file).hyper.block_count == 3);
}

TEST_CASE("deepseek4: contradictions and limits are refused") {
    const auto edited = [] { return EditedModel(small(16)); };
    CHECK(refusal(edited(), 21) == "");
    const auto refused = [&](const std::string &key, const auto &value, const char *why) {
        check_refused(edited(), "deepseek4." + key, value, 21, why);
    };
    refused("hyper_connection.count", 1u, "");
    refused("hyper_connection.count", 8u, "");
    refused("hyper_connection.sinkhorn_iterations", 0u, "");
    refused("hyper_connection.epsilon", -1.0f, "");
    refused("expert_gating_func", 2u, "");
    refused("attention.head_count_kv", 2u, "is not 1");
    refused("attention.value_length", 4u, "differs from attention.key_length");
    refused("attention.output_group_count", 3u, "does not divide attention.head_count");
    refused("attention.output_group_count", 0u, "");
    refused("attention.indexer.key_length", 2u, "is smaller than deepseek4.rope.dimension_count");
    refused("attention.indexer.top_k", 0u, "");
    refused("attention.sliding_window", 0u, "");
    refused("attention.compress_rope_freq_base", 1.0f, "must be greater than 1");
    refused("rope.freq_base", 0.0f, "must be greater than 1");
    refused("hash_layer_count", 4u, "");
    const auto ratios = [](std::vector<uint32_t> all) { return gguf::Array(std::span<const uint32_t>(all)); };
    refused("attention.compress_ratios", ratios({0, 4}), "has 2 numbers, but there are 3 layers");
    refused("attention.compress_ratios", ratios({0, 1, 4}),
            "has 1, which is neither 0 nor between 2 and 256");
    refused("attention.compress_ratios", ratios({0, 4, 257}), "has 257");
    CHECK(refusal(edited().set("deepseek4.attention.compress_ratios", ratios({0, 4, 128, 0})), 21) == "");
    for (const char *key : {"hyper_connection.count", "attention.compress_ratios", "attention.q_lora_rank",
                            "attention.indexer.top_k", "hash_layer_count", "expert_gating_func"})
        CHECK(refusal(edited().without(std::string("deepseek4.") + key), 21).find(key) != std::string::npos);
    for (const std::string name :
         {"blk.0.hc_attn_fn", "blk.1.hc_ffn_base", "output_hc_scale", "blk.0.ffn_gate_tid2eid",
          "blk.1.attn_compressor_ape", "blk.2.attn_compressor_norm", "blk.1.indexer_compressor_gate",
          "blk.1.indexer.proj", "blk.0.attn_sinks", "blk.2.attn_output_a"})
        CHECK(refusal(edited().without_tensor(name + ".weight"), 21).find(name) != std::string::npos);
    CHECK(refusal(edited().without_tensor("blk.1.exp_probs_b.bias"), 21).find("exp_probs_b") !=
          std::string::npos);
    CHECK(refusal(edited().without_tensor("blk.1.indexer.proj.weight"), 19) == "");
    // The experts of a token: all zeros, and another type.
    const std::string table = "blk.0.ffn_gate_tid2eid.weight";
    CHECK(refusal(edited().tensor(table, gguf::Type::I32, {8, 260}), 21)
              .find("a row is not 8 different numbers below 8") != std::string::npos);
    CHECK(refusal(edited().tensor(table, gguf::Type::F32, {8, 260}), 21).find("i32 is expected") !=
          std::string::npos);
    CHECK(refusal(edited().tensor(table, gguf::Type::I32, {8, 259}), 21).find("its shape is") !=
          std::string::npos);
    const TemporaryModel file(small(16));
    Program program = model::build(file.file, 300).program;
    CHECK_THROWS_WITH_AS(model::impose_window(program, 32, 4),
                         "--window does not work with keys that stand for blocks of tokens: omit it",
                         model::ModelError);
}
