// Block-sparse attention of minimax-m3: the blocks that are chosen, the layers that choose, and what is refused. The other
// promises of sparse attention are tested for all families together (sparse_attention_test.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/measure/pass_cost.h"
#include "engine/model/window.h"
#include "kernels/reference/operations.h"
#include "tests/engine/model/sparse_models.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::testing;
using namespace runnel::tests::sparse;
using tests::RecurrentTexts;

namespace {

// An Indexer without weights, whose inputs are embeddings of distinct tokens; the logits are what it chooses.
struct ChoiceProgram {
    ChoiceProgram(Indexer step, int32_t tokens, std::mt19937 &random) : indexer(step) {
        const int32_t count = step.heads * step.top_k;
        program.slots = {{"q", step.heads * step.head_dim}, {"k", step.head_dim}, {"chosen", count}};
        std::normal_distribution<float> value(0, 1);
        for (Slot slot = 0; slot < 2; ++slot) {
            const int64_t width = program.slots[static_cast<size_t>(slot)].width;
            inputs.emplace_back(static_cast<size_t>(tokens * width));
            for (float &x : inputs.back()) x = value(random);
            program.steps.push_back(Embed{add("random", inputs.back(), tokens, width), slot});
        }
        program.ropes = {{RopeTable::Pairs::Halves, 1, {1, 0.5, 0.25, 0.01}, 0}};
        program.cache_layers = {{1, step.head_dim, 0, 0, true}};
        program.steps.push_back(step);
        identity.resize(static_cast<size_t>(count * count));
        for (int32_t i = 0; i < count; ++i) identity[static_cast<size_t>(i * count + i)] = 1;
        program.steps.push_back(Logits{2, add("identity", identity, count, count)});
        program.vocab = count;
    }
    WeightId add(const char *name, const std::vector<float> &values, int64_t rows, int64_t cols) {
        program.weights.push_back(
            {name, gguf::Type::F32, rows, cols, reinterpret_cast<const std::byte *>(values.data())});
        return static_cast<WeightId>(program.weights.size() - 1);
    }
    // A head of a token's input, rotated for its position.
    reference::Row head(size_t input, int32_t token, int32_t position, size_t index) const {
        const auto dim = static_cast<size_t>(indexer.head_dim);
        const size_t width = static_cast<size_t>(program.slots[input].width);
        const auto from = inputs[input].begin() +
                          static_cast<std::ptrdiff_t>(static_cast<size_t>(token) * width + index * dim);
        reference::Row row(from, from + static_cast<std::ptrdiff_t>(dim));
        kernels::reference::rope(row, program.ropes[0], position);
        return row;
    }

    Indexer indexer;
    Program program;
    std::vector<std::vector<float>> inputs = {};
    std::vector<float> identity;
};

}  // namespace

// As in the published definition (transformers' modeling_minimax_m3_vl.py): the products of an index query with the keys up
// to its token are reduced to the largest of each block; the newest blocks get infinity; the top_k largest are chosen.
TEST_CASE("block-sparse attention: each head chooses the blocks of the model's definition") {
    std::mt19937 random(1);
    for (int round = 0; round < 12; ++round) {
        const TestDevice device = round < 10 ? kCpu : kGpu;
        CAPTURE(device.name);
        CAPTURE(round);
        constexpr int32_t kTokens = 100;
        const auto below = [&](int32_t n) {
            return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
        };
        Indexer step{};
        step.k = 1, step.weights = kNoSlot, step.chosen = 2, step.rope = 0;
        step.heads = 1 + below(5), step.head_dim = round % 3 == 0 ? 64 : 48, step.top_k = 1 + below(6);
        step.block = 2 + below(30), step.local = 1 + below(std::min(step.top_k, 2));
        CAPTURE(step.heads);
        CAPTURE(step.block);
        CAPTURE(step.top_k);
        CAPTURE(step.local);
        const ChoiceProgram made(step, kTokens, random);
        std::vector<int32_t> text(kTokens);
        std::iota(text.begin(), text.end(), 0);
        std::ranges::shuffle(text, random);
        const auto got = run(device.make(), made.program, RecurrentTexts(made.program, {text}), nullptr)[0];
        std::vector<reference::Row> keys;
        for (int32_t t = 0; t < kTokens; ++t)
            keys.push_back(made.head(1, text[static_cast<size_t>(t)], t, 0));
        for (int32_t t = 0; t < kTokens; ++t)
            for (int32_t head = 0; head < step.heads; ++head) {
                CAPTURE(t);
                CAPTURE(head);
                const reference::Row q =
                    made.head(0, text[static_cast<size_t>(t)], t, static_cast<size_t>(head));
                const int32_t own = t / step.block, count = std::min(step.top_k, own + 1);
                std::vector<double> scores(static_cast<size_t>(own) + 1, -INFINITY);
                for (int32_t cell = 0; cell <= t; ++cell) {
                    double &score = scores[static_cast<size_t>(cell / step.block)];
                    score = std::max(score, kernels::reference::dot(q, keys[static_cast<size_t>(cell)]));
                }
                for (int32_t i = 0; i < step.local && i <= own; ++i)
                    scores[static_cast<size_t>(own - i)] = INFINITY;
                std::vector<double> sorted = scores;
                std::ranges::sort(sorted, std::greater());
                const double least = sorted[static_cast<size_t>(count) - 1];
                const float *list = got[static_cast<size_t>(t)].data() + head * step.top_k;
                std::vector<bool> chosen(scores.size());
                for (int32_t i = 0; i < step.top_k; ++i) {
                    const auto block = static_cast<int32_t>(std::lround(list[i]));
                    REQUIRE((i < count ? block > (i == 0 ? -1 : std::lround(list[i - 1])) : block == -1));
                    REQUIRE(block <= own);
                    if (block >= 0) chosen[static_cast<size_t>(block)] = true;
                }
                // Keys are rounded to F16, on the GPU also queries.
                constexpr double kTolerance = 0.03;
                for (size_t i = 0; i < scores.size(); ++i)
                    REQUIRE((chosen[i] ? scores[i] >= least - kTolerance : scores[i] <= least + kTolerance));
            }
    }
}

TEST_CASE(
    "block-sparse attention: layers without experts are dense, and contexts up to top_k blocks need no "
    "indexer") {
    ModelShape shape = shape_of("minimax-m3", 36);
    shape.layers = 4, shape.experts.leading_dense = 1;
    const TemporaryModel file(shape);
    CHECK(model::build(file.file).hyper.context_length == 36);
    CHECK(count_indexers(model::build(file.file).program) == 0);
    CHECK(count_indexers(model::build(file.file, 36).program) == 0);
    const Program dense = model::build(file.file, 36).program, sparse = model::build(file.file, 37).program;
    std::vector<int32_t> indexed, attending;
    for_each_step<Indexer>(sparse, [&](const Indexer &s) { indexed.push_back(s.layer); });
    for_each_step<Attention>(sparse, [&](const Attention &s) {
        if (s.chosen != kNoSlot) attending.push_back(s.layer);
    });
    CHECK(indexed == std::vector<int32_t>{1, 2, 3});
    CHECK(attending == indexed);
    for (const std::string &why : cuda::missing_kernels(sparse)) CHECK(why == "");
    // 200 cells, of which a token attends to 36 in three of four layers; the indexers read all their keys.
    const auto before = measure::pass_cost(dense, 199, 1), with = measure::pass_cost(sparse, 199, 1);
    CHECK(with.scores == before.scores / 4 + 3 * before.scores / 4 / 200 * 36);
    CHECK(with.cache_read == before.cache_read / 4 + 3 * before.cache_read / 4 / 200 * 36 + 3 * 200 * 64 * 2);
}

TEST_CASE("block-sparse attention: contradictions and limits are refused") {
    const auto edited = [] { return EditedModel(shape_of("minimax-m3", 36)); };
    const std::string keys = "minimax-m3.attention.indexer.";
    CHECK(refusal(edited(), 37) == "");
    const auto refused = [&](const char *key, uint32_t value, const char *why) {
        check_refused(edited(), keys + key, value, 37, why);
    };
    refused("head_count", 1, "is not attention.head_count_kv");
    refused("key_length", 2, "is smaller than minimax-m3.rope.dimension_count");
    refused("local_blocks", 0, "");
    refused("local_blocks", 7, "is larger than attention.indexer.top_k");
    for (const char *key : {"top_k", "block_size"}) {
        refused(key, 0, "");
        CHECK(refusal(edited().without(keys + key), 36).find(keys + key) != std::string::npos);
    }
    for (const char *key : {"head_count", "key_length", "local_blocks"}) {
        CHECK(refusal(edited().without(keys + key), 37).find(keys + key) != std::string::npos);
        CHECK(refusal(edited().without(keys + key), 36) == "");
    }
    for (const char *name : {"q_proj", "k_proj", "q_norm", "k_norm"}) {
        const std::string tensor = "blk.1.indexer." + std::string(name) + ".weight";
        CHECK(refusal(edited().without_tensor(tensor), 37).find(tensor) != std::string::npos);
        CHECK(refusal(edited().without_tensor(tensor), 36) == "");
    }
    CHECK(refusal(edited(), (1 << 24) + 1).find("contexts longer than 16777216 tokens") != std::string::npos);
    const TemporaryModel file(shape_of("minimax-m3", 36));
    Program sparse = model::build(file.file, 37).program;
    CHECK_THROWS_WITH_AS(
        model::impose_window(sparse, 32, 4),
        "--window does not work with sparse attention: choose a context of at most 36 tokens (-c), "
        "which needs no indexer",
        model::ModelError);
}
