// Attention to keys of two kinds: those of a window, with sinks, and keys that stand for several cells each, joined by
// their maxima and sums (Attention::stride and sums, JoinAttention).
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::RecurrentTexts;
using tests::TextLogits;

namespace {

constexpr int32_t kHeads = 2, kDim = 16, kIds = 50;

class JoinedProgram {
  public:
    // block > 0: an indexer chooses top_k of the blocks of `stride` cells.
    JoinedProgram(int32_t stride, int32_t window, int32_t top_k, uint32_t seed) : random_(seed) {
        const Slot q = slot(kHeads * kDim), k = slot(kDim), block_key = slot(kDim),
                   near = slot(kHeads * kDim), far = slot(kHeads * kDim), near_sums = slot(2 * kHeads),
                   far_sums = slot(2 * kHeads);
        for (const Slot in : {q, k, block_key}) look_up(in);
        Attention step{.q = q,
                       .k = k,
                       .v = kNoSlot,
                       .out = near,
                       .cache = 0,
                       .heads = kHeads,
                       .kv_heads = 1,
                       .head_dim_k = kDim,
                       .head_dim_v = kDim,
                       .scale = 0.3f,
                       .window = window,
                       .sinks = floats(1, kHeads),
                       .sums = near_sums};
        program.cache_layers = {{1, kDim, 0}, {1, kDim, 0}};
        program.steps.push_back(step);
        step.k = block_key, step.out = far, step.sums = far_sums, step.cache = 1;
        step.window = 0, step.sinks = kNoWeight, step.stride = stride;
        if (top_k > 0) choose(step, top_k);
        program.steps.push_back(step);
        program.steps.push_back(JoinAttention{{{near, near_sums}, {far, far_sums}}, near, kHeads});
        program.vocab = kHeads * kDim;
        program.steps.push_back(Logits{near, floats(program.vocab, kHeads * kDim)});
    }
    Program program;

  private:
    Slot slot(int64_t width) {
        program.slots.push_back({"slot " + std::to_string(program.slots.size()), width});
        return static_cast<Slot>(program.slots.size() - 1);
    }
    WeightId floats(int64_t rows, int64_t cols) {
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<size_t>(rows * cols));
        for (float &value : values) value = normal(random_);
        const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
        program.constants.push_back(kept);
        program.weights.push_back(
            {"random", gguf::Type::F32, rows, cols, reinterpret_cast<const std::byte *>(kept->data())});
        return static_cast<WeightId>(program.weights.size() - 1);
    }
    void look_up(Slot out) {
        program.steps.push_back(Embed{floats(kIds, program.slots[static_cast<size_t>(out)].width), out});
    }
    void choose(Attention &step, int32_t top_k) {
        constexpr int32_t kIndexHeads = 16;
        const Slot q = slot(kIndexHeads * kDim), k = slot(kDim), weights = slot(kIndexHeads),
                   chosen = slot(top_k + 1);
        for (const Slot in : {q, k, weights}) look_up(in);
        program.cache_layers.push_back({1, kDim, 0, 0, true});
        program.steps.push_back(Indexer{.q = q,
                                        .k = k,
                                        .weights = weights,
                                        .chosen = chosen,
                                        .cache = 2,
                                        .heads = kIndexHeads,
                                        .head_dim = kDim,
                                        .top_k = top_k + 1,
                                        .block = step.stride,
                                        .pooled = true});
        step.chosen = chosen, step.chosen_block = step.stride, step.chosen_pooled = true;
    }

    std::mt19937 random_;
};

std::vector<TextLogits> run(std::unique_ptr<Backend> backend, const Program &program,
                            const RecurrentTexts &texts, std::mt19937 *random) {
    backend->load(program, texts.cache(), texts.max_tokens());
    return texts.run(*backend, random);
}

void check_close(const TextLogits &got, const std::vector<std::vector<double>> &expected, double tolerance) {
    REQUIRE(got.size() == expected.size());
    for (size_t t = 0; t < got.size(); ++t)
        for (size_t i = 0; i < got[t].size(); ++i) {
            CAPTURE(t);
            REQUIRE(double{got[t][i]} == doctest::Approx(expected[t][i]).epsilon(tolerance).scale(5));
        }
}

}  // namespace

TEST_CASE(
    "joined attention: right on both devices, with the same bits whatever the chunks, threads and "
    "instruction sets") {
    std::mt19937 random(5);
    for (const auto &[stride, window, top_k] : {std::tuple{5, 40, 0}, {5, 7, 3}, {32, 3, 0}, {40, 20, 0}}) {
        CAPTURE(stride);
        CAPTURE(top_k);
        const JoinedProgram joined(stride, window, top_k, static_cast<uint32_t>(stride + top_k));
        const auto text = tests::random_texts({66}, kIds, random);
        const RecurrentTexts texts(joined.program, text);
        const auto expected = run(cpu::make_cpu_backend(1, "scalar"), joined.program, texts, nullptr);
        check_close(expected[0], tests::reference_logits(joined.program, text[0]), 1e-3);
        for (const char *isa : {"avx2", "avx512"}) try {
                tests::check_same(run(cpu::make_cpu_backend(3, isa), joined.program, texts, &random),
                                  expected);
            } catch (const BackendError &) {
                MESSAGE("this CPU has no " << std::string(isa));
            }
        const auto gpu = run(cuda::make_cuda_backend(0), joined.program, texts, nullptr);
        check_close(gpu[0], tests::reference_logits(joined.program, text[0]), 1e-2);
        tests::check_same(run(cuda::make_cuda_backend(0), joined.program, texts, &random), gpu);
    }
}

// More keys than a split of the GPU or a range of the CPU.
TEST_CASE("joined attention: right over several splits of keys") {
    std::mt19937 random(6);
    const JoinedProgram joined(2, 20, 0, 7);
    for (const int32_t tokens : {1100, 516}) {
        const auto text = tests::random_texts({tokens}, kIds, random);
        const RecurrentTexts texts(joined.program, text);
        const auto reference = tests::reference_logits(joined.program, text[0]);
        const auto cpu = run(cpu::make_cpu_backend(2), joined.program, texts, nullptr);
        check_close(cpu[0], reference, 1e-3);
        tests::check_same(run(cpu::make_cpu_backend(3), joined.program, texts, &random), cpu);
        if (tokens > 1000) continue;  // too many for the emulated GPU
        check_close(run(cuda::make_cuda_backend(0), joined.program, texts, nullptr)[0], reference, 1e-2);
    }
}
