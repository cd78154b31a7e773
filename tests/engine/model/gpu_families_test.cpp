// Families and formats on the (emulated) GPU: every step has a kernel there, and text and
// logits agree with the CPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/model.h"
#include "gguf/quantize.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/split_backend.h"
#include "kernels/steps.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/support/gpu_beside_cpu.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"
#include "tests/support/random_codebook.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using testing::ModelShape;
using testing::TemporaryModel;

namespace {

constexpr int32_t kTokens = 20, kPrompt = 18;
// Under the sanitizers, only every fifth family: all kernels have tests of their own there.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kEvery = 5;
#else
constexpr size_t kEvery = 1;
#endif

// Formats without 8-bit activations, so that both devices compute nearly the same.
ModelShape shape_of(const std::string &arch) {
    ModelShape shape;
    shape.arch = arch, shape.type = "F16", shape.layers = 1, shape.ff = 64, shape.threads = 1;
    const auto *files = testing::find_family_files(arch);
    // All experts: a choice between equally good ones would depend on rounding.
    if (files->experts) shape.experts.count = shape.experts.used = 2;
    if (files->layer_sizes) shape.layers = 4;  // one of each kind
    if (files->recurrent) {
        shape.width = shape.ff = 32;
        // Two mixers, or a mixer and a feed-forward network, then attention.
        if (files->recurrent->period > 0 && !files->recurrent->attention_too) shape.layers = 3;
        // RWKV: the second layer reads values of the first, or halves the residual stream.
        if (arch.find("rwkv") != arch.npos) shape.layers = 2;
    }
    if (files->gemma3n) shape.layers = 4;    // one of each kind
    if (files->deepseek4) shape.layers = 3;  // one of each kind
    if (files->gemma4) {
        shape.layers = files->gemma4->period + files->gemma4->shared_kv;
        if (files->gemma4->shared_kv == 0) shape.head_dim = 136;  // 272 in full layers
    }
    return shape;
}

// One sequence in blocks 1 and 0 of every group, which writes its state to a slot other than the one it reads.
class OneSequence {
  public:
    explicit OneSequence(const Program &program) : recurrent_(state_bytes(program) > 0) {
        for (const CacheLayer &layer : program.cache_layers) groups_ = std::max(groups_, layer.group + 1);
    }
    CacheConfig cache(CacheType k = CacheType::F16, CacheType v = CacheType::F16) const {
        return {.blocks = std::vector<int32_t>(static_cast<size_t>(groups_), 2),
                .k = k,
                .v = v,
                .states = recurrent_ ? 2 : 0};
    }
    // The span of the sequence's next `count` tokens.
    SequenceSpan next(int32_t count) {
        SequenceSpan span{0, count, past_,
                          std::vector<std::span<const BlockId>>(static_cast<size_t>(groups_), kTable)};
        if (recurrent_) {
            span.state = state_;
            state_ = state_ == 0 ? 1 : 0;
            span.state_writes = {{count, state_}};
        }
        past_ += count;
        return span;
    }

  private:
    static constexpr BlockId kTable[] = {1, 0};
    int32_t groups_ = 0, past_ = 0;
    bool recurrent_;
    StateId state_ = kNoState;
};

// Logits of every token, the last ones one by one.
std::vector<reference::Row> logits_of(std::unique_ptr<Backend> backend, const Program &program, CacheType k,
                                      CacheType v) {
    OneSequence sequence(program);
    backend->load(program, sequence.cache(k, v), kPrompt);
    std::vector<int32_t> tokens(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) tokens[static_cast<size_t>(i)] = 1 + i * i * 7 % 290;
    std::vector<reference::Row> all;
    for (int32_t at = 0; at < kTokens;) {
        const int32_t count = at == 0 ? kPrompt : 1;
        std::vector<int32_t> positions(static_cast<size_t>(count)), rows(static_cast<size_t>(count));
        std::iota(positions.begin(), positions.end(), at);
        std::iota(rows.begin(), rows.end(), 0);
        const SequenceSpan span = sequence.next(count);
        const auto vocab = static_cast<size_t>(program.vocab);
        std::vector<float> logits(static_cast<size_t>(count) * vocab);
        REQUIRE(backend->execute({std::span(tokens).subspan(static_cast<size_t>(at), positions.size()),
                                  positions,
                                  {&span, 1},
                                  rows},
                                 logits));
        for (size_t row = 0; row < rows.size(); ++row)
            all.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(row * vocab),
                             logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * vocab));
        at += count;
    }
    return all;
}

// The text generated after a prompt, and the logits of all tokens. If a text is given, generation follows
// it.
struct Text {
    std::vector<int32_t> tokens;
    std::vector<reference::Row> logits;
    // The logits from which token i of the text was chosen.
    const reference::Row &choice(size_t i) const { return logits[logits.size() - tokens.size() + i]; }
};
Text greedy(std::unique_ptr<Backend> backend, const Program &program, const std::vector<int32_t> &told = {}) {
    constexpr int32_t kMore = 3;
    const std::vector<int32_t> prompt = {7, 290, 33, 121, 64};
    OneSequence sequence(program);
    backend->load(program, sequence.cache(), static_cast<int32_t>(prompt.size()));
    Text text;
    std::vector<int32_t> next = prompt;
    for (int32_t past = 0, step = 0; step <= kMore; ++step) {
        const auto count = static_cast<int32_t>(next.size());
        std::vector<int32_t> positions(next.size());
        std::iota(positions.begin(), positions.end(), past);
        std::vector<int32_t> rows(next.size());
        std::iota(rows.begin(), rows.end(), 0);
        const SequenceSpan span = sequence.next(count);
        const auto vocab = static_cast<size_t>(program.vocab);
        std::vector<float> logits(rows.size() * vocab);
        REQUIRE(backend->execute({next, positions, {&span, 1}, rows}, logits));
        for (size_t row = 0; row < rows.size(); ++row) {
            const auto from = std::span(logits).subspan(row * vocab, vocab);
            text.logits.emplace_back(from.begin(), from.end());
        }
        const reference::Row &last = text.logits.back();
        text.tokens.push_back(static_cast<int32_t>(std::ranges::max_element(last) - last.begin()));
        past += count;
        next = {told.empty() ? text.tokens.back() : told[static_cast<size_t>(step)]};
    }
    return text;
}

double divergence(const std::vector<reference::Row> &p, const std::vector<reference::Row> &q) {
    double kl = 0;
    for (size_t t = 0; t < p.size(); ++t) {
        const double of_p = reference::log_sum_exp(p[t]), of_q = reference::log_sum_exp(q[t]);
        for (size_t i = 0; i < p[t].size(); ++i)
            kl += std::exp(p[t][i] - of_p) * ((p[t][i] - of_p) - (q[t][i] - of_q));
    }
    return kl / static_cast<double>(p.size());
}

// Checks that the text is the same; a different token is accepted only if the CPU's margin is smaller than
// the difference between the devices. Returns how often that happened.
size_t check_same_text(const Program &program) {
    const Text cpu = greedy(cpu::make_cpu_backend(1), program),
               gpu = greedy(testing::make_gpu_beside_cpu(), program, cpu.tokens);
    CHECK(divergence(cpu.logits, gpu.logits) < 1e-3);
    size_t ties = 0;
    for (size_t i = 0; i < cpu.tokens.size(); ++i) {
        if (cpu.tokens[i] == gpu.tokens[i]) continue;
        const auto of = [&](const Text &text, const Text &choice) {
            return text.choice(i)[static_cast<size_t>(choice.tokens[i])];
        };
        double difference = 0;
        for (size_t t = 0; t < cpu.choice(i).size(); ++t)
            difference = std::max(difference, std::abs(cpu.choice(i)[t] - gpu.choice(i)[t]));
        CHECK(of(cpu, cpu) - of(cpu, gpu) <= 2 * difference);
        ++ties;
    }
    return ties;
}

// Checks the families with recurrent layers, or those without.
void check_families(bool recurrent) {
    size_t count = 0;
    for (const testing::FamilyFiles &family : testing::family_files()) {
        if (family.recurrent.has_value() != recurrent || count++ % kEvery != 0) continue;
        CAPTURE(family.name);
        const TemporaryModel tiny(shape_of(family.name));
        const model::Model model = model::build(tiny.file);
        // Tables of n-grams, and what they need, stay on the CPU.
        const std::vector<std::string> missing = cuda::missing_kernels(model.program);
        bool whole = true;
        for (size_t i = 0; i < missing.size(); ++i) {
            if (missing[i] == "") continue;
            whole = false;
            const Step &step = model.program.steps[i];
            const auto *embed = std::get_if<Embed>(&step);
            REQUIRE((std::holds_alternative<HashedEmbed>(step) || (embed && embed->table == kNoWeight)));
        }
        CHECK(whole == !family.qwen4.has_value());
        CHECK(check_same_text(model.program) == 0);
    }
    CHECK(count >= 15);
}

// The same with the second layer on another GPU.
void check_two_gpus(const Program &of_model, const tests::RecurrentTexts &texts,
                    const std::vector<tests::TextLogits> &expected, std::mt19937 &random) {
    std::vector<std::unique_ptr<Backend>> two;
    for (int i = 0; i < 2; ++i) two.push_back(cuda::make_cuda_backend(0));
    const auto split = make_split_backend(std::move(two), [](const Program &program) {
        std::vector<uint8_t> device;
        for (const Step &step : program.steps) device.push_back(layer_of(step) == 1);
        return device;
    });
    split->load(of_model, texts.cache(), texts.max_tokens());
    tests::check_same(texts.run(*split, &random), expected);
    // The layers with K and V, then the states: three convolutions and a scan in each mixer.
    CHECK(split->info().kind == "cuda+cuda [0; 0-3] [; 4-7]");
}

}  // namespace

TEST_CASE("gpu families: every family gives the same text on the GPU and the CPU") {
    check_families(false);
}

TEST_CASE("gpu families: every family with recurrent layers gives the same text on the GPU and the CPU") {
    check_families(true);
}

TEST_CASE("gpu families: sparse attention gives the same text on the GPU and the CPU") {
    for (const char *arch : {"deepseek32", "glm-dsa", "minimax-m3", "qwen4exp", "deepseek4"}) {
        CAPTURE(arch);
        ModelShape shape = shape_of(arch);
        shape.indexer_heads = 16, shape.indexer_top_k = 4, shape.indexer_block = 2;
        const TemporaryModel tiny(shape);
        const Program program = model::build(tiny.file, 100).program;
        int32_t most = 0;  // cells that a token attends to
        for_each_step<Indexer>(program, [&](const Indexer &step) { most = step.all_cells(); });
        CHECK(most >= 4);
        CHECK(most < 8);  // and so many it has before the last one is generated
        CHECK(check_same_text(program) == 0);
    }
}

TEST_CASE("gpu families: recurrent layers give the same bits whatever the chunks, batch and roll-backs") {
    for (const char *arch : {"qwen35", "minimax-01", "kimi-linear", "rwkv7"}) {
        CAPTURE(arch);
        ModelShape shape = shape_of(arch);
        shape.vocab = 260;
        const TemporaryModel tiny(shape);
        const model::Model model = model::build(tiny.file);
        std::mt19937 random(9);
        const tests::RecurrentTexts texts(model.program, tests::random_texts({14, 9}, 260, random));
        const auto gpu = cuda::make_cuda_backend(0);
        gpu->load(model.program, texts.cache(), texts.max_tokens());
        const auto expected = texts.run(*gpu, nullptr);
        tests::check_same(texts.run(*gpu, &random), expected);
        if (shape.arch == "qwen35") check_two_gpus(model.program, texts, expected, random);
    }
}

TEST_CASE("gpu families: every format gives the same text on the GPU and the CPU") {
    size_t formats = 0, ties = 0;
    for (uint32_t id = 0; id < gguf::kTypeIds; ++id) {
        const gguf::TypeTraits *traits = gguf::find_type(id);
        if (traits == nullptr) continue;
        if (!gguf::can_quantize(traits->type) && !testing::is_codebook_type(traits->type)) continue;
        if (formats++ % kEvery != 0) continue;
        const std::string name(traits->name);
        CAPTURE(name);
        ModelShape shape;
        shape.type = name, shape.pure = true, shape.threads = 1;
        shape.layers = 1, shape.width = shape.ff = 256;
        const TemporaryModel tiny(shape);
        ties += check_same_text(model::build(tiny.file).program);
    }
    CHECK(formats == 30);
    CHECK(ties <= 2);
}

TEST_CASE("gpu families: latent attention and wide heads agree with the CPU") {
    using enum CacheType;
    struct Case {
        std::string arch;
        CacheType k, v;
    };
    for (const auto &[arch, k, v] : {Case{"deepseek2", F16, F16},
                                     {"deepseek2-lite", Q8_0, Q8_0},
                                     {"gemma4", F16, F16},
                                     {"gemma4-31b", Q8_0, Q4_0}}) {
        CAPTURE(arch);
        // F32 weights: a 4-bit cache amplifies the GPU's rounding of F16 activations to 11 bits.
        ModelShape shape = shape_of(arch);
        shape.type = "F32";
        const TemporaryModel tiny(shape);
        const model::Model model = model::build(tiny.file);
        const auto gpu = logits_of(cuda::make_cuda_backend(0), model.program, k, v);
        CHECK(divergence(logits_of(cpu::make_cpu_backend(1), model.program, k, v), gpu) < 1e-3);
    }
}
