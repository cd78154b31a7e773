// qwen4exp (Qwen3.8-Flash-Next): embeddings of n-grams, and attention to blocks that pooled keys choose. Hyper-connections are
// held against llama.cpp with all families (families_test.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/model/window.h"
#include "kernels/device.h"
#include "kernels/reference/operations.h"
#include "tests/engine/model/sparse_models.h"
#include "tests/support/gpu_beside_cpu.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::testing;
using namespace runnel::tests::sparse;
using tests::RecurrentTexts;

namespace {

// Two layers with gated delta nets, one with attention.
ModelShape small(int64_t top_k, uint64_t seed = 1) {
    ModelShape shape = shape_of("qwen4exp", top_k, 1, seed);
    shape.layers = 3;
    return shape;
}

HashedEmbed::Hash random_hash(std::mt19937_64 &random) {
    HashedEmbed::Hash hash;
    const size_t grams = 2 + random() % 3;
    hash.heads_per_gram = static_cast<int32_t>(1 + random() % 3);
    hash.end = static_cast<int32_t>(random() % 20);
    for (size_t i = 0; i < grams; ++i) hash.multipliers.push_back(random() >> (random() % 40) | 1);
    for (size_t head = 0; head < (grams - 1) * static_cast<size_t>(hash.heads_per_gram); ++head)
        hash.heads.push_back({random() % 1000, 1 + random() % 100000});
    return hash;
}

}  // namespace

// The rows were computed with Python's integers.
TEST_CASE("qwen4exp: hashes of n-grams are those of the definition") {
    constexpr uint64_t kLarge = 35'184'372'088'831;
    const HashedEmbed::Hash hash{
        {kLarge, kLarge + 2, kLarge + 8}, {{0, 61}, {61, 60}, {121, 59}, {180, 58}}, 2, 2};
    const auto rows = [&](float a, float b, float c) {
        const float tokens[] = {a + 1, b + 1, c + 1};
        std::vector<size_t> all;
        for (size_t head = 0; head < 4; ++head) all.push_back(HashedEmbed::row(hash, tokens, head));
        return all;
    };
    CHECK(rows(5, 7, 9) == std::vector<size_t>{13, 65, 144, 205});
    CHECK(rows(248319, 151643, 3) == std::vector<size_t>{51, 111, 152, 223});
    // No token before: as if it were the end; the end hides what is before it.
    CHECK(rows(5, -1, -1) == rows(5, 2, 2));
    CHECK(rows(5, 2, 9) == rows(5, 2, 2));
    CHECK(rows(5, 7, -1) == rows(5, 7, 2));
    CHECK(rows(2, 7, 9) != rows(2, 2, 2));  // its own end does not

    std::mt19937_64 random(3);
    for (int round = 0; round < 300; ++round) {
        const HashedEmbed::Hash one = random_hash(random);
        std::vector<float> tokens(one.multipliers.size());
        for (float &token : tokens) token = static_cast<float>(random() % 22);
        tokens[0] += 1;
        const reference::Row row(tokens.begin(), tokens.end());
        for (size_t head = 0; head < one.heads.size(); ++head) {
            const auto chosen = static_cast<int64_t>(HashedEmbed::row(one, tokens.data(), head));
            CHECK(chosen == kernels::reference::hashed_row(one, row, head));
            CHECK(chosen >= static_cast<int64_t>(one.heads[head].offset));
            CHECK(chosen < static_cast<int64_t>(one.heads[head].offset + one.heads[head].size));
        }
    }
}

TEST_CASE("qwen4exp: as long as a token attends to all cells, logits have the bits of dense attention") {
    const TemporaryModel file(small(48));
    const Program dense = model::build(file.file, 48).program, sparse = model::build(file.file, 49).program;
    CHECK(count_indexers(dense) == 0);
    CHECK(count_indexers(sparse) == 1);
    CHECK(count_indexers(model::build(file.file).program) == 1);
    for_each_step<Indexer>(sparse, [](const Indexer &step) { CHECK(step.all_cells() == 51); });
    std::mt19937 random(2);
    // 48 cells in blocks of 4, and an unfinished block of 3.
    check_same_programs(dense, sparse, tests::random_texts({51, 33, 48}, 260, random), random);
}

TEST_CASE("qwen4exp: batches, chunks, roll-backs, threads and instruction sets change no bit") {
    std::mt19937 random(3);
    for (const int64_t top_k : {4, 16}) {
        const TemporaryModel file(small(top_k));
        const Program program = model::build(file.file, kLong).program;
        const RecurrentTexts texts(program, tests::random_texts({90, 35, 70}, 260, random));
        for (const CacheType type : {CacheType::F16, CacheType::Q8_0}) {
            const auto expected = run(program, texts, 1, "scalar", nullptr, type);
            for (const std::string &isa : instruction_sets()) {
                CAPTURE(isa);
                tests::check_same(run(program, texts, 3, isa, &random, type), expected);
            }
        }
        const RecurrentTexts some(program, tests::random_texts({26, 14}, 260, random));
        tests::check_same(run(make_gpu_beside_cpu(), program, some, &random),
                          run(make_gpu_beside_cpu(), program, some, nullptr));
    }
}

// Rounding decides which of two blocks with nearly equal scores is chosen; the logits of the GPU agree up to the first such
// choice.
TEST_CASE("qwen4exp: logits agree with double precision, and differ from dense ones beyond top_k") {
    for (const int64_t top_k : {8, 20}) {
        CAPTURE(top_k);
        const TemporaryModel file(small(top_k, static_cast<uint64_t>(top_k))),
            other(small(400, static_cast<uint64_t>(top_k)));
        const Program program = model::build(file.file, kLong).program,
                      dense = model::build(other.file, 400).program;
        std::mt19937 random(4);
        const std::vector<int32_t> text = tests::random_texts({70}, 260, random)[0];
        const auto expected = check_sparse_logits(program, dense, text, static_cast<size_t>(top_k) + 3);
        const auto gpu = run(make_gpu_beside_cpu(), program, RecurrentTexts(program, {text}), nullptr)[0];
        int64_t close = 0;  // tokens of the GPU before the first that differs
        for (size_t t = 0; t < text.size() && close == static_cast<int64_t>(t); ++t) {
            double error = 0;
            for (size_t v = 0; v < expected[t].size(); ++v)
                error = tests::larger(error, std::fabs(double{gpu[t][v]} - expected[t][v]));
            close += error < 0.01;
        }
        CHECK(close >= top_k + 10);
    }
}

TEST_CASE("qwen4exp: the table of n-grams need not be in memory") {
    const TemporaryModel file(small(16));
    const Program program = model::build(file.file, 100).program;
    size_t all = 0;
    for (const Weight &weight : program.weights) all += weight.bytes();
    const gguf::Tensor *table = file.file.find_tensor("per_layer_token_embd.weight");
    CHECK(cpu_device()->need(program, {.blocks = {4}, .states = 1}, 16).weights == all - table->bytes);
}

TEST_CASE("qwen4exp: contradictions and limits are refused") {
    const auto edited = [] { return EditedModel(small(16)); };
    CHECK(refusal(edited(), 17) == "");
    const auto refused = [&](const std::string &key, const auto &value, const char *why) {
        check_refused(edited(), "qwen4exp." + key, value, 17, why);
    };
    refused("hyper_connection.count", 1u, "");
    refused("hyper_connection.count", 8u, "");
    refused("hyper_connection.low_rank", 0u, "");
    refused("attention.indexer.top_k", 18u, "is not a multiple of attention.compress_ratios");
    refused("attention.indexer.key_length", 2u, "is smaller than qwen4exp.rope.dimension_count");
    refused("attention.compress_ratios", 1u, "is less than 2 in a layer with attention");
    refused("ple.layers", 3u, "");
    refused("ple.ngram_size", 1u, "");
    refused("ple.conv_kernel", 1u, "");
    refused("ple.conv_kernel", 7u, "is larger than the 16 tokens that a convolution can reach");
    refused("ple.eos_token_id", 260u, "");
    const auto numbers = [](std::vector<uint64_t> all) {
        return gguf::Array(std::span<const uint64_t>(all));
    };
    refused("ple.layer_multipliers", numbers({1, 2}), "has 2 numbers, but ple.ngram_size is 3");
    refused("ple.layer_multipliers", numbers({1, 2, ~uint64_t{0}}), "");
    refused("ple.head_offsets", numbers({0, 61, 122, 9000}),
            "goes beyond the 244 rows of per_layer_token_embd");
    refused("ple.head_offsets", numbers({0, 61, 122, uint64_t{1} << 62}), "goes beyond the 244 rows");
    refused("ple.head_vocab_sizes", numbers({61, 0, 61, 61}), "has a 0");
    refused("ple.layers", gguf::Array(std::span<const uint32_t>(std::vector<uint32_t>{0, 1})),
            "has several layers");
    for (const char *key : {"hyper_connection.count", "attention.compress_ratios", "ple.layer_multipliers",
                            "ple.head_offsets", "attention.indexer.top_k"})
        CHECK(refusal(edited().without(std::string("qwen4exp.") + key), 17).find(key) != std::string::npos);
    for (const std::string name : {"blk.2.indexer.q_proj", "output_hc_norm", "per_layer_token_embd",
                                   "blk.1.ple_conv1d", "blk.0.hc_ffn_inject"})
        CHECK(refusal(edited().without_tensor(name + ".weight"), 17).find(name) != std::string::npos);
    CHECK(refusal(edited().without_tensor("blk.2.indexer.q_proj.weight"), 16) == "");
    // Without the embeddings of n-grams, their tensors are not expected.
    EditedModel plain = edited().without_tensor("per_layer_token_embd.weight");
    for (const char *key : {"ple.layers", "ple.ngram_size", "ple.heads_per_ngram", "ple.conv_kernel",
                            "ple.eos_token_id", "ple.layer_multipliers", "ple.head_offsets",
                            "ple.head_vocab_sizes", "embedding_length_per_layer_input"})
        plain.without(std::string("qwen4exp.") + key);
    for (const char *name : {"key", "value", "norm_key", "norm_query", "norm_conv", "conv1d"})
        plain.without_tensor("blk.1.ple_" + std::string(name) + ".weight");
    CHECK(refusal(plain, 17) == "");
    const TemporaryModel file(small(16));
    Program sparse = model::build(file.file, 300).program;
    CHECK_THROWS_WITH_AS(
        model::impose_window(sparse, 32, 4),
        "--window does not work with sparse attention: choose a context of at most 19 tokens "
        "(-c), which needs no indexer",
        model::ModelError);
}
