// Sparse attention: indexers choose the cells (deepseek32, glm-dsa) or blocks of cells (minimax-m3) that tokens attend to.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/measure/pass_cost.h"
#include "engine/measure/planner.h"
#include "engine/model/model.h"
#include "engine/model/window.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/reference/operations.h"
#include "kernels/split_backend.h"
#include "kernels/steps.h"
#include "kernels/tensor_backend.h"
#include "tests/engine/model/sparse_models.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/simt/simt.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::testing;
using namespace runnel::tests::sparse;
using tests::RecurrentTexts, tests::TextLogits;

TEST_CASE("sparse attention: up to top_k tokens, logits have the bits of dense attention") {
    for (const char *arch : {"deepseek32", "glm-dsa", "minimax-m3"}) {
        CAPTURE(arch);
        const TemporaryModel file(shape_of(arch, 90, std::string(arch) == "glm-dsa" ? 3 : 1));
        const Program dense = model::build(file.file, 90).program,
                      sparse = model::build(file.file, 91).program;
        CHECK(count_indexers(dense) == 0);
        CHECK(count_indexers(sparse) == (std::string(arch) == "deepseek32" ? 4 : 2));
        std::mt19937 random(2);
        check_same_programs(dense, sparse, tests::random_texts({90, 33, 64}, 260, random), random);
        // On the GPU, other kernels attend to all cells of heads that are not latent.
        if (std::string(arch) == "minimax-m3") continue;
        const auto some = tests::random_texts({30, 7}, 260, random);
        tests::check_same(run(kGpu.make(), sparse, RecurrentTexts(sparse, some), &random),
                          run(kGpu.make(), dense, RecurrentTexts(dense, some), nullptr));
    }
}

TEST_CASE("sparse attention: batches, chunks, roll-backs, threads and instruction sets change no bit") {
    std::mt19937 random(3);
    for (const auto &[arch, top_k, period] : {std::tuple{"deepseek32", 16, 1},
                                              {"glm-dsa", 16, 2},
                                              {"glm-dsa", 40, 3},
                                              {"deepseek32", 1, 1},
                                              {"minimax-m3", 18, 1}}) {
        CAPTURE(arch);
        CAPTURE(top_k);
        const TemporaryModel file(shape_of(arch, top_k, period));
        const Program program = model::build(file.file, kLong).program;
        const RecurrentTexts texts(program, tests::random_texts({90, 35, 70}, 260, random));
        for (const CacheType type : {CacheType::F16, CacheType::Q8_0, CacheType::Q4_0}) {
            if (type != CacheType::F16 && (top_k % 2 != 0 || top_k > 18 || period != 1)) continue;
            const auto expected = run(program, texts, 1, "scalar", nullptr, type);
            for (const std::string &isa : instruction_sets()) {
                CAPTURE(isa);
                tests::check_same(run(program, texts, 3, isa, &random, type), expected);
                if (isa != "scalar") tests::check_same(run(program, texts, 1, isa, &random, type), expected);
            }
        }
    }
}

TEST_CASE("sparse attention: batches, chunks and roll-backs change no bit on the GPU") {
    std::mt19937 random(11);
    for (const auto &[arch, top_k] : {std::pair{"deepseek32", 8}, {"minimax-m3", 12}}) {
        CAPTURE(arch);
        ModelShape shape = shape_of(arch, top_k);
        shape.layers /= 2;
        const TemporaryModel file(shape);
        const Program program = model::build(file.file, kLong).program;
        const RecurrentTexts texts(program, tests::random_texts({22, 14}, 260, random));
        for (const CacheType type : {CacheType::F16, CacheType::Q8_0})
            tests::check_same(run(kGpu.make(), program, texts, &random, type),
                              run(kGpu.make(), program, texts, nullptr, type));
    }
}

TEST_CASE("sparse attention: the GPU memory of indexers is known in advance, to the byte") {
    std::mt19937 random(12);
    for (const char *arch : {"deepseek32", "minimax-m3"}) {
        CAPTURE(arch);
        ModelShape shape = shape_of(arch, 12);
        shape.layers /= 2;
        const TemporaryModel file(shape);
        const Program program = model::build(file.file, kLong).program;
        REQUIRE(count_indexers(program) > 0);
        const RecurrentTexts texts(program, tests::random_texts({20}, 260, random));
        const MemoryNeed need = cuda::memory_need(program, texts.cache(), texts.max_tokens());
        simt::take_peak_memory();
        const size_t before = simt::take_peak_memory();
        const auto backend = kGpu.make();
        backend->load(program, texts.cache(), texts.max_tokens());
        simt::take_peak_memory();
        const size_t taken = simt::take_peak_memory() - before;
        CHECK(taken == need.all() - cuda::kDriverReserve);
        texts.run(*backend, nullptr);
        CHECK(simt::take_peak_memory() - before == taken);
    }
}

TEST_CASE(
    "sparse attention: beyond top_k tokens, logits agree with double precision and differ from dense ones") {
    for (const auto &[arch, top_k, period, seed] : {std::tuple{"deepseek32", 16, 1, 1},
                                                    {"glm-dsa", 24, 2, 2},
                                                    {"glm-dsa", 8, 1, 3},
                                                    {"minimax-m3", 18, 1, 4}}) {
        CAPTURE(arch);
        CAPTURE(top_k);
        const TemporaryModel file(shape_of(arch, top_k, period, static_cast<uint64_t>(seed)));
        const Program program = model::build(file.file, kLong).program;
        const TemporaryModel other(shape_of(arch, kLong, period, static_cast<uint64_t>(seed)));
        const Program dense = model::build(other.file, kLong).program;
        CHECK(count_indexers(dense) == 0);
        std::mt19937 random(4);
        check_sparse_logits(program, dense, tests::random_texts({70}, 260, random)[0],
                            static_cast<size_t>(top_k));
    }
}

TEST_CASE("sparse attention: an indexer chooses the cells with the largest scores in double precision") {
    std::mt19937 random(5);
    for (int round = 0; round < 23; ++round) {
        const TestDevice device = round < 20 ? kCpu : kGpu;
        CAPTURE(device.name);
        CAPTURE(round);
        // Embeddings of distinct tokens are the random inputs; the logits are the chosen cells.
        const int32_t heads = 1 + static_cast<int32_t>(random() % 12), dim = round % 3 == 0 ? 64 : 48,
                      top_k = 1 + static_cast<int32_t>(random() % 50), tokens = 120;
        Program program;
        std::vector<std::vector<float>> memory;
        const auto table = [&](int64_t rows, int64_t cols) {
            std::normal_distribution<float> value(0, 1);
            memory.emplace_back(static_cast<size_t>(rows * cols));
            for (float &x : memory.back()) x = value(random);
            program.weights.push_back({"random", gguf::Type::F32, rows, cols,
                                       reinterpret_cast<const std::byte *>(memory.back().data())});
            return static_cast<WeightId>(program.weights.size() - 1);
        };
        program.slots = {{"q", heads * dim}, {"k", dim}, {"weights", heads}, {"chosen", top_k}};
        for (Slot slot = 0; slot < 3; ++slot)
            program.steps.push_back(
                Embed{table(tokens, program.slots[static_cast<size_t>(slot)].width), slot});
        program.ropes.push_back({round % 2 == 0 ? RopeTable::Pairs::Halves : RopeTable::Pairs::Adjacent,
                                 1,
                                 {1, 0.5, 0.25, 0.01},
                                 0});
        program.cache_layers = {{1, dim, 0, 0, true}};
        const Indexer indexer{0, 1, 2, 3, 0, heads, dim, top_k, round % 4 == 0 ? -1 : 0};
        program.steps.push_back(indexer);
        memory.emplace_back(static_cast<size_t>(top_k * top_k));
        for (int32_t i = 0; i < top_k; ++i) memory.back()[static_cast<size_t>(i * top_k + i)] = 1;
        program.weights.push_back({"identity", gguf::Type::F32, top_k, top_k,
                                   reinterpret_cast<const std::byte *>(memory.back().data())});
        program.steps.push_back(Logits{3, static_cast<WeightId>(program.weights.size() - 1)});
        program.vocab = top_k;
        std::vector<int32_t> text(static_cast<size_t>(tokens));
        std::iota(text.begin(), text.end(), 0);
        std::shuffle(text.begin(), text.end(), random);
        const auto got = run(device.make(), program, RecurrentTexts(program, {text}), nullptr)[0];
        const auto at = [&](size_t slot, int32_t t, size_t from, size_t count) {
            const float *row = memory[slot].data() +
                               static_cast<int64_t>(text[static_cast<size_t>(t)]) * program.slots[slot].width;
            return reference::Row(row + from, row + from + count);
        };
        for (int32_t t = 0; t < tokens; ++t) {
            CAPTURE(t);
            const auto size = static_cast<size_t>(dim);
            const auto turned = [&](reference::Row row, int32_t position) {
                if (indexer.rope >= 0) kernels::reference::rope(row, program.ropes[0], position);
                return row;
            };
            std::vector<double> scores;
            for (int32_t cell = 0; cell <= t; ++cell) {
                double score = 0;
                for (size_t h = 0; h < static_cast<size_t>(heads); ++h)
                    score += at(2, t, h, 1)[0] *
                             std::max(0.0, kernels::reference::dot(turned(at(0, t, h * size, size), t),
                                                                   turned(at(1, cell, 0, size), cell)));
                scores.push_back(score);
            }
            // Scores differ by the rounding of keys to F16, on the GPU also that of queries.
            const double tolerance = 0.02 * std::sqrt(static_cast<double>(heads));
            std::vector<bool> chosen(scores.size());
            int32_t last = -1;
            const int32_t count = std::min(top_k, t + 1);
            for (int32_t i = 0; i < top_k; ++i) {
                const auto cell =
                    static_cast<int32_t>(std::lround(got[static_cast<size_t>(t)][static_cast<size_t>(i)]));
                if (i >= count) {
                    REQUIRE(cell == -1);
                    continue;
                }
                REQUIRE(cell > last);
                REQUIRE(cell <= t);
                chosen[static_cast<size_t>(last = cell)] = true;
            }
            std::vector<double> sorted = scores;
            std::ranges::sort(sorted, std::greater());
            const double least = sorted[static_cast<size_t>(count) - 1];
            for (size_t cell = 0; cell < scores.size(); ++cell)
                REQUIRE((chosen[cell] ? scores[cell] > least - tolerance : scores[cell] < least + tolerance));
        }
    }
}

namespace {

void check_branch(const TestDevice &device, const ModelShape &shape) {
    CAPTURE(device.name);
    CAPTURE(shape.arch);
    const TemporaryModel file(shape);
    const Program program = model::build(file.file, kLong).program;
    std::mt19937 random(6);
    const auto text = tests::random_texts({43}, 260, random)[0];
    const auto fresh = [&](std::vector<int32_t> tokens) {
        const auto backend = device.make();
        backend->load(program, {.blocks = {4}}, 64);
        const std::vector<BlockId> table{2, 0};
        const auto logits = feed(*backend, program, tokens, 0, table);
        return std::vector<float>(logits.end() - program.vocab, logits.end());
    };
    const auto backend = device.make();
    backend->load(program, {.blocks = {6}}, 64);
    const std::vector<BlockId> trunk{3, 1}, branch{3, 4};  // the first block is shared
    const std::span<const int32_t> prefix = std::span(text).first(40);
    feed(*backend, program, prefix, 0, trunk);
    const BlockCopy copy{1, 4};
    backend->copy_blocks(0, {&copy, 1});
    // The trunk gets tokens a, b; the branch has a as well, and c instead of b.
    const std::vector<int32_t> tokens{text[40], text[41], text[42]}, positions{40, 41, 41}, rows{0, 1, 2};
    std::vector<SequenceSpan> spans(2);
    spans[0] = {0, 2, 40, {trunk}};
    spans[1] = {2, 1, 41, {branch}, 1, 0};
    std::vector<float> logits(3 * static_cast<size_t>(program.vocab));
    REQUIRE(backend->execute({tokens, positions, spans, rows}, logits));
    std::vector<int32_t> whole(prefix.begin(), prefix.end());
    whole.push_back(text[40]);
    for (const size_t row : {size_t{1}, size_t{2}}) {
        std::vector<int32_t> path = whole;
        path.push_back(text[40 + row]);
        const auto from = logits.begin() + static_cast<std::ptrdiff_t>(row) * program.vocab;
        CHECK(tests::same_bits({from, from + program.vocab}, fresh(path)));
    }
    // The branch goes on.
    const std::vector<int32_t> more{7};
    std::vector<int32_t> path = whole;
    path.push_back(text[42]), path.push_back(7);
    CHECK(tests::same_bits(feed(*backend, program, more, 42, branch), fresh(path)));
}

void check_saved_blocks(const TestDevice &device, const ModelShape &shape) {
    CAPTURE(device.name);
    CAPTURE(shape.arch);
    const TemporaryModel file(shape);
    const Program program = model::build(file.file, kLong).program;
    std::mt19937 random(7);
    const auto text = tests::random_texts({80}, 260, random)[0];
    const std::vector<BlockId> table{4, 2, 3}, other{0, 1, 5};
    const auto one = device.make(), two = device.make();
    for (const auto &backend : {one.get(), two.get()})
        backend->load(program, {.blocks = {6}, .k = CacheType::Q8_0}, 80);
    feed(*one, program, std::span(text).first(64), 0, table);
    std::vector<std::byte> bytes(cache_block_bytes(program, 0, CacheType::Q8_0));
    for (size_t i = 0; i < 2; ++i) {
        one->read_block(0, table[i], bytes);
        two->write_block(0, other[i], bytes);
    }
    const auto rest = std::span(text).subspan(64);
    CHECK(tests::same_bits(feed(*two, program, rest, 64, other), feed(*one, program, rest, 64, table)));
}

// With a tensor split: each device has some of the heads, and all of the indexers.
void check_tensor_split(const TestDevice &device, const ModelShape &shape, std::vector<double> shares) {
    CAPTURE(device.name);
    CAPTURE(shape.arch);
    const TemporaryModel file(shape);
    const Program program = model::build(file.file, kLong).program;
    std::mt19937 random(9);
    const RecurrentTexts texts(program, tests::random_texts({35, 20}, 260, random));
    const auto split = [&] {
        std::vector<std::unique_ptr<Backend>> devices;
        for (int i = 0; i < 3; ++i) devices.push_back(device.make());
        return make_tensor_backend(std::move(devices), shares, {"one", "two", "three"});
    };
    const auto expected = run(device.make(), program, texts, nullptr, CacheType::Q8_0);
    tests::check_same(run(split(), program, texts, nullptr, CacheType::Q8_0), expected);
    tests::check_same(run(split(), program, texts, &random, CacheType::Q8_0), expected);
    // Where devices divide K/V heads, their blocks have another order.
    if (std::ranges::any_of(program.cache_layers, [](const CacheLayer &l) { return l.kv_heads > 1; })) return;
    const auto text = tests::random_texts({40}, 260, random)[0];
    const std::vector<BlockId> table{1, 0};
    const auto one = device.make(), two = split();
    for (const auto &backend : {one.get(), two.get()})
        backend->load(program, {.blocks = {2}, .k = CacheType::Q8_0}, 40);
    feed(*one, program, std::span(text).first(32), 0, table);
    feed(*two, program, std::span(text).first(32), 0, table);
    std::vector<std::byte> of_one(cache_block_bytes(program, 0, CacheType::Q8_0)), of_two(of_one.size());
    one->read_block(0, 1, of_one);
    two->read_block(0, 1, of_two);
    CHECK(of_one == of_two);
}

}  // namespace

TEST_CASE("sparse attention: a branch of a draft tree and copied blocks give the bits of a fresh run") {
    for (ModelShape shape : {shape_of("glm-dsa", 16, 2), shape_of("minimax-m3", 12)}) {
        check_branch(kCpu, shape);
        if (shape.arch == "minimax-m3") shape.layers = 1;  // the emulator is slow
        check_branch(kGpu, shape);
    }
}

TEST_CASE("sparse attention: saved blocks restore the keys of indexers") {
    check_saved_blocks(kCpu, shape_of("deepseek32", 16));
    check_saved_blocks(kGpu, shape_of("deepseek32", 16));
    check_saved_blocks(kCpu, shape_of("minimax-m3", 12));
}

TEST_CASE("sparse attention: a tensor split gives the bits and blocks of one device") {
    check_tensor_split(kCpu, shape_of("glm-dsa", 16, 2), {2, 1, 0});
    check_tensor_split(kGpu, shape_of("glm-dsa", 16, 2), {2, 1, 0});
    // Devices with one K/V head each, and with none.
    ModelShape blocks = shape_of("minimax-m3", 12);
    check_tensor_split(kCpu, blocks, {1, 1, 0});
    blocks.layers = 1;  // the emulator is slow
    check_tensor_split(kGpu, blocks, {1, 1, 0});
    ModelShape pooled = shape_of("qwen4exp", 12);
    pooled.layers = 3;
    check_tensor_split(kCpu, pooled, {1, 1, 0});
}

TEST_CASE("sparse attention: devices that share the layers give the same bits") {
    const TemporaryModel file(shape_of("glm-dsa", 16, 3));
    const Program program = model::build(file.file, kLong).program;
    std::mt19937 random(8);
    const RecurrentTexts texts(program, tests::random_texts({90, 40}, 260, random));
    const auto expected = run(program, texts, 1, "", nullptr);
    for (int round = 0; round < 6; ++round) {
        std::vector<uint8_t> device;
        uint8_t now = 0;
        for (size_t i = 0; i < program.steps.size(); ++i) {
            if (random() % 6 == 0) now = static_cast<uint8_t>(random() % 2);
            device.push_back(now);
        }
        std::vector<std::unique_ptr<Backend>> devices;
        for (int i = 0; i < 2; ++i) devices.push_back(cpu::make_cpu_backend(1));
        const auto both =
            make_split_backend(std::move(devices), [&](const Program &) { return device; }, {"one", "two"});
        both->load(program, texts.cache(), texts.max_tokens());
        tests::check_same(texts.run(*both, &random), expected);
    }
}

TEST_CASE("sparse attention: the keys of indexers take F16 in every cache, and are counted") {
    const TemporaryModel file(shape_of("glm-dsa", 64, 2));
    const Program dense = model::build(file.file, 64).program,
                  sparse = model::build(file.file, kLong).program;
    for (const CacheType type : {CacheType::F16, CacheType::Q8_0, CacheType::Q4_0, CacheType::FP8}) {
        const size_t keys = 2 * 64 * 2;  // layers, dimensions, bytes
        CHECK(cache_block_bytes(sparse, 0, type, type) ==
              cache_block_bytes(dense, 0, type, type) + 32 * keys);
        CHECK(measure::cell_bytes(sparse, {type, type}) == measure::cell_bytes(dense, {type, type}) + keys);
    }
    CHECK(measure::cell_formula(sparse, {CacheType::Q8_0, CacheType::Q8_0})
              .find("2 layers x 1 head x 64 values x 2 bytes") != std::string::npos);
    // 200 cells, of which a token attends to 64; the indexers read all.
    const auto before = measure::pass_cost(dense, 199, 1), with = measure::pass_cost(sparse, 199, 1);
    CHECK(with.scores == before.scores / 200 * 64);
    CHECK(with.cache_read == before.cache_read / 200 * 64 + 200 * 2 * 64 * 2);
    CHECK(with.cache_written == before.cache_written + 2 * 64 * 2);
}

TEST_CASE("sparse attention: a GPU has kernels for all steps, up to top_k tokens and beyond") {
    const TemporaryModel file(shape_of("deepseek32", 64));
    for (const int64_t context : {64, 65})
        for (const std::string &why : cuda::missing_kernels(model::build(file.file, context).program))
            CHECK(why == "");
    for (const std::string &why : cuda::missing_kernels(model::build(file.file).program)) CHECK(why == "");
    Program large = model::build(file.file, 65).program;
    for (Step &step : large.steps)
        if (auto *indexer = std::get_if<Indexer>(&step)) indexer->head_dim = 136;
    const auto missing = cuda::missing_kernels(large);
    for (size_t i = 0; i < missing.size(); ++i)
        CHECK((missing[i] == "") == !std::holds_alternative<Indexer>(large.steps[i]));
}

// All weights are F32. Rounding decides which of two cells with nearly equal scores is chosen, and the tokens after that have
// other states: the logits agree up to the first such choice.
TEST_CASE("sparse attention: the GPU's logits agree with double precision, but for choices among equals") {
    for (const auto &[arch, top_k, period, seed] :
         {std::tuple{"deepseek32", 16, 1, 1}, {"glm-dsa", 24, 2, 2}, {"minimax-m3", 24, 1, 3}}) {
        CAPTURE(arch);
        ModelShape shape = shape_of(arch, top_k, period, static_cast<uint64_t>(seed));
        shape.type = "F32";
        const TemporaryModel file(shape);
        const Program program = model::build(file.file, kLong).program;
        std::mt19937 random(10);
        const auto text = tests::random_texts({45}, 260, random);
        const auto gpu = run(kGpu.make(), program, RecurrentTexts(program, text), nullptr)[0];
        const auto expected = tests::reference_logits(program, text[0]);
        int32_t close = 0;  // tokens before the first that differs
        for (size_t t = 0; t < gpu.size(); ++t) {
            double error = 0;
            for (size_t v = 0; v < gpu[t].size(); ++v)
                error = tests::larger(error, std::fabs(double{gpu[t][v]} - expected[t][v]));
            if (!(error < 0.01)) break;
            ++close;
        }
        CHECK(close >= top_k + 6);
    }
}

TEST_CASE("sparse attention: contradictions and limits are refused") {
    const auto edited = [](int64_t period = 1) { return EditedModel(shape_of("glm-dsa", 64, period)); };
    const std::string keys = "glm-dsa.attention.indexer.";
    CHECK(refusal(edited(), 65) == "");
    CHECK(refusal(edited().without(keys + "top_k"), 65).find("attention.indexer.top_k") != std::string::npos);
    CHECK(refusal(edited().without(keys + "head_count"), 65).find("head_count") != std::string::npos);
    CHECK(refusal(edited().without(keys + "head_count"), 64) == "");
    CHECK(refusal(edited().set(keys + "key_length", 8u), 65).find("key_length: is smaller than") !=
          std::string::npos);
    CHECK(
        refusal(edited().without_tensor("blk.1.indexer.k_norm.bias"), 65).find("blk.1.indexer.k_norm.bias") !=
        std::string::npos);
    CHECK(refusal(edited(2).without_tensor("blk.2.indexer.proj.weight"), 65)
              .find("blk.2.indexer.proj.weight") != std::string::npos);
    CHECK(refusal(edited(2).set(keys + "types", 0u), 65).find("the first layer has no indexer") !=
          std::string::npos);
    CHECK(refusal(edited(), (1 << 24) + 1).find("contexts longer than 16777216 tokens") != std::string::npos);
    const TemporaryModel file(shape_of("glm-dsa", 64));
    Program sparse = model::build(file.file, 65).program, dense = model::build(file.file, 64).program;
    CHECK_THROWS_AS(model::impose_window(sparse, 32, 4), model::ModelError);
    CHECK_NOTHROW(model::impose_window(dense, 32, 4));
}

TEST_CASE(
    "sparse attention: without attention.indexer.types, GLM-5.2 has indexers in layers 0, 1, 2, 6, 10, ...") {
    ModelShape shape = shape_of("glm-dsa", 64);
    shape.layers = 11;
    for (const auto &[context, own] : {std::pair{202752, 11}, {1 << 20, 5}}) {
        shape.context = context;
        const TemporaryModel file(shape);
        std::vector<int32_t> layers;
        const Program program = model::build(file.file, 1000).program;
        for_each_step<Indexer>(program, [&](const Indexer &s) { layers.push_back(s.layer); });
        CHECK(layers.size() == static_cast<size_t>(own));
        if (own == 5) CHECK(layers == std::vector<int32_t>{0, 1, 2, 6, 10});
    }
}
