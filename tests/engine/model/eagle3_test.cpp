#include "engine/model/eagle3.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/decode/hidden_states.h"
#include "engine/model/draft_block.h"
#include "engine/model/layers.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/eagle_head.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::testing;
using reference::Row, reference::to_row;

namespace {

constexpr int32_t kTokens = 40;
constexpr size_t kExact = 12;  // of which so many are computed in double precision, which is slow

std::vector<int32_t> ids(uint32_t seed = 1) {
    std::mt19937 rng(seed);
    std::vector<int32_t> tokens(kTokens);
    for (int32_t &id : tokens) id = static_cast<int32_t>(rng() % 260);
    return tokens;
}

double difference(std::span<const float> a, std::span<const double> b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - b[i]));
    return most;
}

ModelShape target_shape(const std::string &arch = "llama") {
    ModelShape shape;
    shape.arch = arch, shape.layers = 4, shape.width = 32, shape.ff = 48, shape.vocab = 260;
    shape.threads = 1;
    return shape;
}

// --- the head, in double precision ---------------------------------------------------------------------------

class Exact {
  public:
    Exact(const EagleHead &head, const EagleHead::Values &embedding, const EagleHead::Values &output)
        : head_(head), embedding_(embedding.all), output_(output.all) {}

    struct Result {
        Row logits, y;  // of the last token
    };
    // tokens[i] and g[i] at position i.
    Result run(std::span<const int32_t> tokens, const std::vector<Row> &g) const {
        const HeadShape &s = head_.shape();
        const auto width = static_cast<size_t>(s.width), dim = static_cast<size_t>(s.head_dim);
        std::vector<Row> keys, values;
        Row q, residual;
        for (size_t i = 0; i < tokens.size(); ++i) {
            const Row e =
                to_row(std::span(embedding_).subspan(static_cast<size_t>(tokens[i]) * width, width));
            Row x = norm(e, "blk.0.attn_norm"), normed = norm(g[i], "blk.0.attn_norm_2");
            residual = s.norm_before_residual ? normed : g[i];
            x.insert(x.end(), normed.begin(), normed.end());
            q = rotated(times("blk.0.attn_q", x), i);
            keys.push_back(rotated(times("blk.0.attn_k", x), i));
            values.push_back(times("blk.0.attn_v", x));
        }
        Row attended;
        for (size_t head = 0; head < static_cast<size_t>(s.heads); ++head) {
            const size_t of = head / static_cast<size_t>(s.heads / s.kv_heads) * dim;
            Row weights;
            for (const Row &k : keys)
                weights.push_back(std::exp(
                    reference::dot(std::span(q).subspan(head * dim, dim), std::span(k).subspan(of, dim)) /
                    std::sqrt(double(dim))));
            double sum = 0;
            for (const double w : weights) sum += w;
            for (size_t d = 0; d < dim; ++d) {
                double mean = 0;
                for (size_t i = 0; i < values.size(); ++i) mean += weights[i] / sum * values[i][of + d];
                attended.push_back(mean);
            }
        }
        Row h = times("blk.0.attn_output", attended);
        for (size_t i = 0; i < width; ++i) h[i] += residual[i];
        const Row in = norm(h, "blk.0.ffn_norm");
        Row gate = times("blk.0.ffn_gate", in);
        const Row up = times("blk.0.ffn_up", in);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        const Row down = times("blk.0.ffn_down", gate);
        for (size_t i = 0; i < width; ++i) h[i] += down[i];
        return {product(output_, norm(h, "output_norm")), h};
    }

  private:
    const std::vector<float> &all(const std::string &name) const {
        return head_.tensors.at(name + ".weight").all;
    }
    Row norm(const Row &x, const std::string &name) const {
        return reference::rms_norm(x, to_row(all(name)), double{1e-5f});
    }
    static Row product(const std::vector<float> &matrix, const Row &x) {
        Row out;
        const Row weights = to_row(matrix);
        for (size_t at = 0; at < weights.size(); at += x.size())
            out.push_back(reference::dot(std::span(weights).subspan(at, x.size()), x));
        return out;
    }
    Row times(const std::string &name, const Row &x) const { return product(all(name), x); }
    // Pairs (2j, 2j + 1) of each head, by position * base^(-2j / size), divided by the file's divisor.
    Row rotated(Row x, size_t position) const {
        const HeadShape &s = head_.shape();
        const auto dim = static_cast<size_t>(s.head_dim);
        for (size_t i = 0; i < x.size(); i += 2) {
            const size_t j = i % dim / 2;
            double angle = double(position) * std::pow(s.rope_freq_base, -2.0 * double(j) / double(dim));
            if (s.divisors) angle /= double{all("rope_freqs").at(j)};
            const double a = x[i], b = x[i + 1];
            x[i] = a * std::cos(angle) - b * std::sin(angle);
            x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
        }
        return x;
    }

    const EagleHead &head_;
    const std::vector<float> &embedding_, &output_;
};

EagleHead::Values tensor_of(const gguf::File &file, const std::string &name) {
    const gguf::Tensor *t = file.find_tensor(name);
    REQUIRE(t);
    const auto *data = reinterpret_cast<const float *>(t->data);
    return {{t->shape, t->shape + t->rank}, {data, data + t->elements()}};
}

// --- states of a target --------------------------------------------------------------------------------------

// The rows of a slot before step `end` of a program, computed in double precision: [kExact][width].
std::vector<float> rows_before(kernels::Program program, size_t end, kernels::Slot slot) {
    const int64_t width = program.slots[static_cast<size_t>(slot)].width;
    std::vector<float> identity(static_cast<size_t>(width * width));
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) identity[i * static_cast<size_t>(width) + i] = 1;
    const auto kept = std::make_shared<const std::vector<float>>(std::move(identity));
    program.constants.push_back(kept);
    program.weights.push_back(
        {"identity", gguf::Type::F32, width, width, reinterpret_cast<const std::byte *>(kept->data())});
    program.steps.resize(end, kernels::Embed{});
    program.steps.push_back(
        kernels::Logits{.in = slot, .weight = static_cast<kernels::WeightId>(program.weights.size() - 1)});
    program.vocab = width;
    const std::vector<int32_t> tokens = ids();
    return kernels::reference::logits_of(program, std::span(tokens).first(kExact));
}

kernels::Slot slot_named(const kernels::Program &program, const char *name) {
    const auto found = std::ranges::find(program.slots, name, &kernels::SlotInfo::name);
    REQUIRE(found != program.slots.end());
    return static_cast<kernels::Slot>(found - program.slots.begin());
}

// The input of a layer, or the target's last state.
std::vector<float> tap_of(const model::Model &target, int32_t layer) {
    const kernels::Program &program = target.program;
    const auto &steps = model::layers_of(program).of_step;
    const std::string &arch = target.hyper.architecture;
    if (layer == model::layers_of(program).count && arch != "gpt-oss" && arch != "mimo2" && arch != "step35")
        return rows_before(program, program.steps.size() - 1,
                           std::get<kernels::Logits>(program.steps.back()).in);
    const auto first = static_cast<size_t>(std::ranges::find(steps, layer) - steps.begin());
    return rows_before(program, first, slot_named(program, "residual"));
}

struct Run {
    std::vector<float> logits, g;
};

// The logits and g of ids().
Run run_target(std::unique_ptr<kernels::Backend> backend, const kernels::Program &program,
               const model::DraftHead *head) {
    const auto states = std::make_shared<decode::HiddenStates>(decode::HiddenStates::Pairs::WithNext);
    if (head)
        backend = decode::keep_hidden_states(std::move(backend), states, model::state_of(head->program));
    std::vector<kernels::BlockId> table = {0, 1};
    kernels::CacheConfig cache{.blocks = {}, .context = 2 * kernels::kBlockTokens, .states = 1};
    for (const kernels::CacheLayer &layer : program.cache_layers)
        cache.blocks.resize(std::max(cache.blocks.size(), static_cast<size_t>(layer.group) + 1), 2);
    backend->load(program, cache, kTokens);
    kernels::SequenceSpan span{0, kTokens, 0, {}};
    span.tables.assign(cache.blocks.size(), table);
    if (!program.state_layers.empty()) span.state_writes = {{kTokens, 0}};
    const std::vector<int32_t> tokens = ids();
    std::vector<int32_t> positions(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i;
    Run run{std::vector<float>(static_cast<size_t>(kTokens * program.vocab)), {}};
    REQUIRE(backend->execute({tokens, positions, {&span, 1}, positions}, run.logits));
    for (int32_t cell = 0; head && cell < int32_t{kExact}; ++cell) {
        std::vector<float> g(static_cast<size_t>(states->width()));
        states->get(table, cell, g);
        run.g.insert(run.g.end(), g.begin(), g.end());
    }
    return run;
}

// F [a; b; c] of the first kExact tokens.
std::vector<double> fused(const model::Model &target, const EagleHead &head) {
    const auto width = static_cast<size_t>(target.hyper.embedding_length);
    std::vector<std::vector<float>> taps;
    for (const int32_t layer : head.target_layers) taps.push_back(tap_of(target, layer));
    const Row fc = to_row(head.tensors.at("fc.weight").all);
    std::vector<double> all;
    for (size_t t = 0; t < kExact; ++t) {
        Row x;
        for (const auto &tap : taps) x.insert(x.end(), &tap[t * width], &tap[t * width] + width);
        if (head.shape().norm_before_fc)
            x = reference::rms_norm(x, to_row(head.tensors.at("enc.output_norm.weight").all), double{1e-5f});
        for (size_t row = 0; row < static_cast<size_t>(head.width()); ++row)
            all.push_back(reference::dot(std::span(fc).subspan(row * x.size(), x.size()), x));
    }
    return all;
}

std::string problem_of(const std::function<void()> &f) {
    try {
        f();
    } catch (const model::ModelError &error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("eagle3: the logits and states of a head are those of a double-precision computation") {
    const TemporaryModel target(target_shape());
    const HeadShape shapes[] = {
        {},
        {.heads = 2, .kv_heads = 1, .head_dim = 24, .norm_before_residual = true},
        {.width = 64, .ff = 40, .rows = 100, .divisors = true, .rope_freq_base = 500},
        {.own_embedding = true, .own_output = true, .norm_before_residual = true, .norm_before_fc = true},
    };
    for (size_t which = 0; which < std::size(shapes); ++which) {
        CAPTURE(which);
        const EagleHead head(target.file, shapes[which]);
        const gguf::File file = head.write_and_open(target.directory / "head.gguf");
        model::Model with = model::build(target.file);
        const model::DraftHead made = model::add_eagle3(with, target.file, file);
        CHECK(made.notes.empty());
        CHECK(made.tokens.size() == static_cast<size_t>(head.shape().rows));
        const auto tensor = [&](const std::string &name) {
            return head.tensors.contains(name) ? head.tensors.at(name) : tensor_of(target.file, name);
        };
        const EagleHead::Values embedding = tensor("token_embd.weight"), output = tensor("output.weight");
        const auto width = static_cast<size_t>(head.width());
        std::mt19937 rng(4);
        std::normal_distribution<float> normal;
        std::vector<Row> g(kTokens, Row(width));
        for (Row &row : g)
            for (double &x : row) x = double{normal(rng)};
        const Exact::Result expected = Exact(head, embedding, output).run(ids(), g);

        const kernels::Program &program = made.program;
        REQUIRE(program.vocab == static_cast<int64_t>(expected.logits.size()));
        for (const bool gpu : {false, true}) {
            CAPTURE(gpu);
            if (gpu && which % 2 == 1) continue;  // the emulator is slow
            const auto backend =
                gpu ? kernels::cuda::make_cuda_backend(0) : kernels::cpu::make_cpu_backend(1);
            backend->load(program, {.blocks = {2}, .context = 64}, kTokens);
            const kernels::Program::Part &part = program.parts.at(0);
            const kernels::SlotRows in = backend->exchange(part.in.at(0));
            for (int64_t t = 0; t < kTokens; ++t)
                std::ranges::copy(g[static_cast<size_t>(t)], in.data + t * in.stride);
            const kernels::BlockId table[] = {0, 1};
            const kernels::SequenceSpan span{0, kTokens, 0, {table}};
            std::vector<int32_t> positions(kTokens);
            for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i;
            std::vector<float> logits(static_cast<size_t>(kTokens * program.vocab));
            const std::vector<int32_t> tokens = ids();
            REQUIRE(backend->execute({tokens, positions, {&span, 1}, positions}, logits));
            const kernels::SlotRows y = backend->exchange(part.out.at(0));
            const auto last = std::span(logits).last(expected.logits.size());
            CHECK(difference(last, expected.logits) < (gpu ? 5e-2 : 1e-2));
            CHECK(difference({y.data + (kTokens - 1) * y.stride, width}, expected.y) < (gpu ? 5e-2 : 1e-2));
        }
    }
}

TEST_CASE("eagle3: every family hands out the inputs of its layers, and its logits keep their bits") {
    std::vector<std::string> refused;
    for (const FamilyFiles &family : family_files()) {
        CAPTURE(family.name);
        ModelShape shape;
        shape.arch = family.name, shape.layers = 8, shape.threads = 1;
        if (family.experts) shape.experts.used = 8;  // all: no choice between equally good ones
        const TemporaryModel target(shape);
        const model::Model plain = model::build(target.file);
        if (!decode::whole_group(plain.program)) continue;  // where no head can draft
        HeadShape how;
        how.layers = {0, 5, model::layers_of(plain.program).count};
        how.norm_before_fc = family.name.size() % 2 == 0;
        const EagleHead head(target.file, how);
        const gguf::File file = head.write_and_open(target.directory / "head.gguf");
        model::Model with = model::build(target.file);
        std::unique_ptr<const model::DraftHead> made;
        const std::string problem = problem_of([&] {
            made = std::make_unique<const model::DraftHead>(model::add_eagle3(with, target.file, file));
        });
        if (!problem.empty()) {
            CHECK(problem.find("an EAGLE-3 head does not work with this") != std::string::npos);
            refused.push_back(std::string(family.name));
            continue;
        }
        const Run run = run_target(kernels::cpu::make_cpu_backend(1), with.program, made.get());
        CHECK(run.logits == run_target(kernels::cpu::make_cpu_backend(1), plain.program, nullptr).logits);
        const std::vector<double> expected = fused(plain, head);
        double size = 0;
        for (const double x : expected) size = std::max(size, std::fabs(x));
        CHECK(difference(run.g, expected) < 2e-3 * size);
    }
    CHECK(refused ==
          std::vector<std::string>{"gemma3n", "deepseek4", "qwen4exp"});  // which have four streams
}

TEST_CASE("eagle3: the inputs of last layers that compute nothing are the state of the layer before them") {
    EditedModel edited(target_shape("deci"));
    const auto numbers = [](std::vector<int32_t> values) {
        gguf::Array array(gguf::ValueType::I32);
        for (const int32_t value : values) array.push(value);
        return array;
    };
    edited.set("deci.attention.head_count", numbers({4, 0, 0, 0}));
    edited.set("deci.attention.head_count_kv", numbers({2, 0, 0, 0}));
    edited.set("deci.feed_forward_length", numbers({48, 48, 0, 0}));
    const TemporaryModel whole(target_shape("deci"));
    for (const gguf::Tensor &t : whole.file.tensors())
        if (t.name.starts_with("blk.2.") || t.name.starts_with("blk.3."))
            edited.without_tensor(std::string(t.name));
    const gguf::File target = gguf::File::open(edited.write());
    const auto g_of = [&](std::array<int32_t, 3> layers) {
        HeadShape how;
        how.layers = layers;
        const gguf::File file = EagleHead(target, how).write_and_open(whole.directory / "head.gguf");
        model::Model with = model::build(target);
        const model::DraftHead made = model::add_eagle3(with, target, file);
        return run_target(kernels::cpu::make_cpu_backend(1), with.program, &made).g;
    };
    const std::vector<float> expected = g_of({0, 2, 2});
    CHECK(g_of({0, 2, 3}) == expected);
    CHECK(g_of({0, 3, 2}) == expected);
    CHECK(g_of({0, 1, 2}) != expected);
}

TEST_CASE(
    "eagle3: on the (emulated) GPU a target hands out the same states, and its logits keep their bits") {
    for (const char *arch : {"gemma2", "gpt-oss", "falcon"}) {
        CAPTURE(arch);
        const TemporaryModel target(target_shape(arch));
        const model::Model plain = model::build(target.file);
        HeadShape how;
        how.layers = {0, 2, plain.hyper.block_count};
        const EagleHead head(target.file, how);
        const gguf::File file = head.write_and_open(target.directory / "head.gguf");
        model::Model with = model::build(target.file);
        const model::DraftHead made = model::add_eagle3(with, target.file, file);
        const Run run = run_target(kernels::cuda::make_cuda_backend(0), with.program, &made);
        CHECK(run.logits == run_target(kernels::cuda::make_cuda_backend(0), plain.program, nullptr).logits);
        const std::vector<double> expected = fused(plain, head);
        double size = 0;
        for (const double x : expected) size = std::max(size, std::fabs(x));
        CHECK(difference(run.g, expected) < 2e-2 * size);
    }
}

TEST_CASE("eagle3: a head that does not fit its target is refused with the reason") {
    const TemporaryModel target(target_shape());
    const EagleHead good(target.file, {.rows = 30});
    const auto problem = [&](const std::function<void(EagleHead &)> &change, HeadShape shape = {.rows = 30}) {
        EagleHead head(target.file, shape);
        change(head);
        const gguf::File file = head.write_and_open(target.directory / "head.gguf");
        model::Model with = model::build(target.file);
        const size_t steps = with.program.steps.size();
        const std::string text = problem_of([&] { (void)model::add_eagle3(with, target.file, file); });
        if (!text.empty()) CHECK(with.program.steps.size() == steps);
        CHECK(text.find('\n') == std::string::npos);
        return text;
    };
    const auto holds = [](const std::string &text, const std::string &part) {
        INFO(text);
        return text.find(part) != std::string::npos;
    };
    CHECK(problem([](EagleHead &) {}) == "");
    CHECK(holds(problem([](EagleHead &h) { h.numbers["target_hidden_size"] = 48; }),
                "eagle3.target_hidden_size: 48, but the target (llama) has 32 as embedding_length"));
    CHECK(holds(problem([](EagleHead &h) { h.numbers.erase("target_hidden_size"); }),
                "eagle3.target_hidden_size: missing"));
    CHECK(holds(problem([](EagleHead &h) {
                    h.target_layers = {1, 2, 5};
                }),
                "eagle3.target_layers: holds 5, but the target (llama) has 4 layers"));
    CHECK(holds(problem([](EagleHead &h) { h.target_layers = {-1, 2, 3}; }), "holds -1, but"));
    CHECK(holds(problem([](EagleHead &h) {
                    h.target_layers = {1, 2};
                }),
                "eagle3.target_layers: expected an array of 3 layers"));
    CHECK(
        holds(problem([](EagleHead &h) { h.numbers["block_count"] = 2; }), "eagle3.block_count: must be 1"));
    CHECK(holds(problem([](EagleHead &h) { h.tokens[7] = 260; }),
                "tensor d2t: row 7 is token 260, but the target has 260 tokens"));
    CHECK(holds(problem([](EagleHead &h) { h.tokens[7] = -1; }), "tensor d2t: row 7 is token -1"));
    CHECK(holds(problem([](EagleHead &h) { h.tokens[7] = h.tokens[3]; }), ", like an earlier row"));
    CHECK(holds(problem([](EagleHead &h) { h.tokens.pop_back(); }), "output.weight: its shape is 32 x 30"));
    CHECK(holds(problem([](EagleHead &h) { h.tensors.erase("output.weight"); }),
                "tensor output.weight: missing, but there is d2t"));
    CHECK(holds(problem([](EagleHead &h) { h.tensors.erase("token_embd.weight"); }, {.width = 64}),
                "token_embd.weight: missing, and the target's has 32 columns, expected 64"));
    CHECK(holds(problem([](EagleHead &h) { h.tensors.erase("output.weight"); }, {.width = 64}),
                "output.weight: missing, and the target's has 32 columns, expected 64"));
    CHECK(
        holds(problem([](EagleHead &h) {
                  h.add("token_embd.weight", {32, 100}, 0, 1);
              }),
              "token_embd.weight: its shape is 32 x 100, expected 32 (embedding_length) x 260 (the target's "
              "tokens)"));
    CHECK(holds(problem([](EagleHead &h) {
                    h.add("fc.weight", {64, 32}, 0, 1);
                }),
                "tensor fc.weight: its shape is 64 x 32, expected 96 (3 * target_hidden_size) x 32"));
    CHECK(holds(problem([](EagleHead &h) { h.tensors.erase("fc.weight"); }), "tensor fc.weight: missing"));
    CHECK(holds(
        problem([](EagleHead &h) { h.tensors.erase("enc.output_norm.weight"); }, {.norm_before_fc = true}),
        "tensor enc.output_norm.weight: missing"));
    CHECK(holds(problem([](EagleHead &h) {
                    h.add("blk.0.attn_q.weight", {32, 32}, 0, 1);
                }),
                "blk.0.attn_q.weight: its shape is 32 x 32, expected 64 (2 * embedding_length)"));
    CHECK(holds(problem([](EagleHead &h) { h.add("blk.0.attn_q.bias", {32}, 0, 1); }),
                "blk.0.attn_q.bias: the architecture eagle3 has no such weight"));
    CHECK(holds(problem([](EagleHead &h) { h.numbers["attention.head_count"] = 0; }),
                "eagle3.attention.head_count"));

    // A head for a model with another tokenizer, and a file that is no head.
    ModelShape larger = target_shape();
    larger.vocab = 300;
    const TemporaryModel other(larger);
    model::Model with = model::build(other.file);
    const gguf::File file = good.write_and_open(target.directory / "good.gguf");
    CHECK(holds(problem_of([&] { (void)model::add_eagle3(with, other.file, file); }),
                "tokenizer.ggml.tokens: has 260 tokens, but the target (llama) has 300"));
    CHECK(
        holds(problem_of([&] { (void)model::add_head(with, other.file, other.file); }), "not a draft head"));
    CHECK(holds(problem_of([&] { (void)model::build(file); }),
                "an EAGLE-3 head, which drafts for another model and cannot run alone"));
    CHECK(model::head_kind(file) == model::HeadKind::Eagle3);
    CHECK_FALSE(model::head_kind(other.file));
    CHECK(model::eagle3_target(file).draft_rows == 30);
    CHECK(model::eagle3_target(file).width == 32);
}
