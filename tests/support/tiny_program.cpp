#include "tests/support/tiny_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "gguf/quantize.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/random_codebook.h"

namespace runnel::tests {

using namespace kernels;
using reference::Row;

namespace {

RopeTable rope(RopeTable::Pairs pairs, int32_t dimensions, int32_t first) {
    RopeTable table{.pairs = pairs, .magnitude = first > 0 ? 1.2f : 1, .inv_freq = {}, .first = first};
    for (int32_t j = 0; j < dimensions / 2; ++j)
        table.inv_freq.push_back(std::pow(10000.0, -2.0 * j / dimensions));
    return table;
}

}  // namespace

TinyProgram::TinyProgram(const TinyShape &shape, uint32_t seed) : shape_(shape), random_(seed) {
    x_ = slot(shape.width);
    normed_ = slot(shape.width);
    q_ = slot(int64_t{shape.heads} * shape.head_dim_k);
    k_ = slot(int64_t{shape.kv_heads} * shape.head_dim_k);
    v_ = slot(int64_t{shape.kv_heads} * shape.head_dim_v);
    attended_ = slot(int64_t{shape.heads} * shape.head_dim_v);
    gate_ = slot(shape.feed_forward);
    up_ = slot(shape.feed_forward);
    router_ = slot(shape.experts.count);
    branch_ = slot(shape.width);
    program_.ropes.push_back(rope(shape.pairs, shape.head_dim_k, 0));
    program_.vocab = shape.vocab;
    Embed embed{matrix(shape.vocab, shape.width), x_};
    if (shape.varied) {
        program_.ropes.push_back(rope(RopeTable::Pairs::Halves, shape.head_dim_k / 2, shape.head_dim_k / 4));
        embed.scale = 1.5f;
        embed.positions = matrix(40, shape.width);
    }
    program_.steps.push_back(embed);
    for (int32_t layer = 0; layer < shape.layers; ++layer) shape.varied ? add_varied_layer() : add_layer();
    program_.steps.push_back(shape.varied ? varied_norm(x_, normed_, kNoSlot)
                                          : Norm{x_, normed_, vector(shape.width, 1, 0.2f), 1e-5f});
    Logits logits{normed_, matrix(shape.vocab, shape.width)};
    if (shape.varied) {
        logits.bias = vector(shape.vocab, 0, 0.5f);
        logits.scale = 1.25f;
        logits.softcap = 3;
    }
    program_.steps.push_back(logits);
}

Slot TinyProgram::slot(int64_t width) {
    program_.slots.push_back({"slot " + std::to_string(program_.slots.size()), width});
    return static_cast<Slot>(program_.slots.size() - 1);
}

// Random values of the size that keeps activations near 1.
WeightId TinyProgram::matrices(gguf::Type type, int64_t count, int64_t rows, int64_t cols) {
    std::normal_distribution<float> value(0, 1 / std::sqrt(static_cast<float>(cols)));
    std::vector<float> values(static_cast<size_t>(count * rows * cols));
    for (float &w : values) w = value(random_);
    std::vector<std::byte> bytes(gguf::row_bytes(type, cols) * static_cast<size_t>(count * rows));
    if (testing::is_codebook_type(type))
        testing::random_codebook_row(type, values, bytes.data());
    else
        gguf::quantize_row(type, values.data(), bytes.data(), count * rows * cols);
    memory_.push_back(std::move(bytes));
    program_.weights.push_back({"matrix", type, rows, cols, memory_.back().data(), count});
    return static_cast<WeightId>(program_.weights.size() - 1);
}

WeightId TinyProgram::matrix(int64_t rows, int64_t cols) {
    return matrices(shape_.type, 1, rows, cols);
}

WeightId TinyProgram::vector(int64_t size, float center, float spread) {
    std::uniform_real_distribution<float> value(center - spread, center + spread);
    std::vector<std::byte> bytes(static_cast<size_t>(size) * sizeof(float));
    for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
        const float w = value(random_);
        std::memcpy(bytes.data() + i, &w, sizeof w);
    }
    memory_.push_back(std::move(bytes));
    program_.weights.push_back({"vector", gguf::Type::F32, 1, size, memory_.back().data()});
    return static_cast<WeightId>(program_.weights.size() - 1);
}

Linear::Part TinyProgram::part(Slot in, Slot out, Slot add) {
    const int64_t rows = program_.slots[static_cast<size_t>(out)].width;
    const int64_t cols = program_.slots[static_cast<size_t>(in)].width;
    return {matrix(rows, cols), shape_.bias ? vector(rows, 0, 0.3f) : kNoWeight, out, add};
}

Attention TinyProgram::attention() {
    const TinyShape &s = shape_;
    Attention attention{.q = q_,
                        .k = k_,
                        .v = v_,
                        .out = attended_,
                        .cache = static_cast<int32_t>(program_.cache_layers.size()),
                        .heads = s.heads,
                        .kv_heads = s.kv_heads,
                        .head_dim_k = s.head_dim_k,
                        .head_dim_v = s.head_dim_v,
                        .scale = 1 / std::sqrt(static_cast<float>(s.head_dim_k)),
                        .window = s.window,
                        .rope = 0,
                        .norm_eps = 1e-5f};
    if (s.head_norm) {
        attention.q_norm = vector(s.head_dim_k, 1, 0.2f);
        attention.k_norm = vector(s.head_dim_k, 1, 0.2f);
    }
    return attention;
}

void TinyProgram::add_layer() {
    const TinyShape &s = shape_;
    program_.steps.push_back(Norm{x_, normed_, vector(s.width, 1, 0.2f), 1e-5f});
    program_.steps.push_back(Linear{
        normed_, {part(normed_, q_, kNoSlot), part(normed_, k_, kNoSlot), part(normed_, v_, kNoSlot)}});
    program_.steps.push_back(attention());
    program_.cache_layers.push_back({s.kv_heads, s.head_dim_k, s.head_dim_v});
    program_.steps.push_back(Linear{attended_, {part(attended_, x_, x_)}});
    program_.steps.push_back(Norm{x_, normed_, vector(s.width, 1, 0.2f), 1e-5f});
    if (s.experts.count > 0) add_experts();
    if (s.experts.count == 0 || s.experts.shared) add_feed_forward();
}

// The router's logits are spread, so that the choice does not depend on rounding.
void TinyProgram::add_experts() {
    const TinyExperts &e = shape_.experts;
    const int64_t width = shape_.width, ff = shape_.feed_forward;
    const auto biases = [&](int64_t rows) {
        if (!e.biases) return kNoWeight;
        const WeightId id = vector(e.count * rows, 0, 0.3f);
        Weight &w = program_.weights[static_cast<size_t>(id)];
        w.cols = rows, w.count = e.count;
        return id;
    };
    program_.steps.push_back(
        Linear{normed_, {{matrices(gguf::Type::F32, 1, e.count, width), kNoWeight, router_, kNoSlot}}});
    Experts step{.in = normed_,
                 .logits = router_,
                 .out = x_,
                 .add = x_,
                 .routing = e.routing,
                 .gate = matrices(shape_.type, e.count, e.merged ? 2 * ff : ff, width),
                 .up = e.merged ? kNoWeight : matrices(shape_.type, e.count, ff, width),
                 .down = matrices(shape_.type, e.count, width, ff),
                 .weights_on_input = e.weights_on_input};
    if (e.selection_bias) step.routing.selection_bias = vector(e.count, 0, 0.3f);
    if (e.scales) step.routing.expert_scales = vector(e.count, 1, 0.5f);
    step.act = e.act;
    step.parameters.positive = 0.3f;  // for kinds with a limit
    step.gate_bias = biases(e.merged ? 2 * ff : ff);
    if (!e.merged) step.up_bias = biases(ff);
    step.down_bias = biases(width);
    if (e.in_scales) step.gate_scales = vector(e.count, 1, 0.8f);
    if (e.in_scales && !e.merged) step.up_scales = vector(e.count, 1, 0.8f);
    program_.steps.push_back(step);
}

void TinyProgram::add_feed_forward() {
    program_.steps.push_back(Linear{normed_, {part(normed_, gate_, kNoSlot), part(normed_, up_, kNoSlot)}});
    program_.steps.push_back(Activation{gate_, up_, gate_});
    program_.steps.push_back(Linear{gate_, {part(gate_, x_, x_)}});
}

bool TinyProgram::chance(double probability) {
    return std::bernoulli_distribution(probability)(random_);
}

Norm TinyProgram::varied_norm(Slot in, Slot out, Slot add, int32_t parts) {
    const int64_t width = program_.slots[static_cast<size_t>(in)].width;
    const int64_t of_weight = chance(0.5) ? width : width / parts;
    Norm norm{in, out, kNoWeight, 1e-5f, chance(0.5) ? Norm::Kind::Rms : Norm::Kind::Layer};
    if (chance(0.8)) {
        norm.weight = vector(of_weight, 1, 0.2f);
        if (chance(0.5)) norm.bias = vector(of_weight, 0, 0.2f);
    }
    norm.add = add;
    norm.parts = parts;
    if (chance(0.3)) norm.scale = 0.75f;
    return norm;
}

void TinyProgram::vary(Attention &a) {
    const int32_t ropes[] = {-1, 0, 1};
    a.rope = ropes[random_() % 3];
    a.norm_after_rope = chance(0.5);
    if (chance(0.5)) a.q_norm = vector(shape_.head_dim_k, 1, 0.2f);
    if (chance(0.5)) a.k_norm = vector(shape_.head_dim_k, 1, 0.2f);
    if (chance(0.5)) a.window = 5 + static_cast<int32_t>(random_() % 50);
    if (chance(0.5)) a.window_kind = Attention::Window::Chunked;
    if (chance(0.5)) a.softcap = 1.5f;
    if (chance(0.5)) a.sinks = vector(shape_.heads, 0, 2);
    if (chance(0.5)) a.temperature = {.beta = 0.5f, .length = 8, .offset = chance(0.5) ? 1 : 0};
}

// Adds the output of a block to the residual stream, after a norm or scaled.
void TinyProgram::add_output_of_block(Slot from) {
    if (chance(0.5)) {
        program_.steps.push_back(Linear{from, {part(from, branch_, kNoSlot)}});
        program_.steps.push_back(varied_norm(branch_, x_, x_));
    } else {
        Linear::Part output = part(from, x_, x_);
        output.scale = 0.5f;
        program_.steps.push_back(Linear{from, {output}});
    }
}

void TinyProgram::add_varied_layer() {
    const TinyShape &s = shape_;
    Attention a = attention();
    vary(a);
    const bool shared = !program_.cache_layers.empty() && chance(0.3), latent = chance(0.3);
    if (shared)
        --a.cache;
    else
        program_.cache_layers.push_back({s.kv_heads, s.head_dim_k, latent ? 0 : s.head_dim_v});
    if (shared || latent) a.v = kNoSlot;
    if (shared) a.k = kNoSlot;
    program_.steps.push_back(varied_norm(x_, normed_, kNoSlot));
    Linear projections{normed_, {part(normed_, q_, kNoSlot)}};
    if (a.k != kNoSlot) projections.parts.push_back(part(normed_, k_, kNoSlot));
    if (a.v != kNoSlot) projections.parts.push_back(part(normed_, v_, kNoSlot));
    program_.steps.push_back(projections);
    if (chance(0.3)) program_.steps.push_back(varied_norm(q_, q_, kNoSlot, s.heads));
    if (chance(0.5)) absorb_into_queries();
    program_.steps.push_back(a);
    add_output_of_block(attended_);
    const bool plain = chance(0.5);
    using Kind = Activation::Kind;
    static constexpr Kind kKinds[] = {Kind::Silu,        Kind::GeluTanh, Kind::GeluErf,
                                      Kind::ReluSquared, Kind::Sigmoid,  Kind::Relu,
                                      Kind::Clamp,       Kind::XIelu,    Kind::Tanh};
    static constexpr Kind kNeedUp[] = {Kind::SiluClamped, Kind::SiluThenLimit, Kind::LimitThenSilu};
    const Kind act = !plain && chance(0.3) ? kNeedUp[random_() % std::size(kNeedUp)]
                                           : kKinds[random_() % std::size(kKinds)];
    program_.steps.push_back(varied_norm(x_, normed_, kNoSlot));
    program_.steps.push_back(Linear{normed_, {part(normed_, gate_, kNoSlot)}});
    if (!plain) program_.steps.push_back(Linear{normed_, {part(normed_, up_, kNoSlot)}});
    program_.steps.push_back(
        Activation{gate_, plain ? kNoSlot : up_, gate_, act, {0.8f, -0.9f, 0.5f, -1e-6f}});
    add_output_of_block(gate_);
    if (chance(0.3)) mix_halves();
    if (chance(0.3)) interpolate();
}

// Adds to the residual stream a mix of the halves of the stream and of normed values.
void TinyProgram::mix_halves() {
    const int64_t half = shape_.width / 2;
    Mix mix{.in = {x_, normed_}, .out = {branch_}, .width = half};
    if (chance(0.7)) {
        mix.coefficients = slot(2 * 4);
        program_.steps.push_back(Linear{normed_, {part(normed_, mix.coefficients, kNoSlot)}});
    }
    if (chance(0.5)) mix.scale = 0.5f;
    program_.steps.push_back(mix);
    program_.steps.push_back(varied_norm(branch_, x_, x_));
}

// Adds interpolations between normed values and the residual stream, with all kinds of coefficients.
void TinyProgram::interpolate() {
    const int64_t width = shape_.width;
    const Slot from = chance(0.7) ? normed_ : kNoSlot, both = slot(2 * width), first = slot(width),
               second = slot(width);
    program_.steps.push_back(Linear{normed_, {part(normed_, both, kNoSlot)}});
    program_.steps.push_back(Lerp{.from = from,
                                  .to = x_,
                                  .out = {first, second},
                                  .weight = vector(2 * width, 0.5f, 0.3f),
                                  .coefficients = chance(0.5) ? both : kNoSlot});
    const Slot to = chance(0.7) ? normed_ : kNoSlot;
    program_.steps.push_back(Lerp{.from = first, .to = to, .out = {first}, .coefficients = second});
    program_.steps.push_back(varied_norm(first, x_, x_));
}

// Multiplies queries, except their last dimensions, by one matrix per head, as in multi-head latent attention.
void TinyProgram::absorb_into_queries() {
    const int64_t head = shape_.head_dim_k, kept = head / 4;
    const Slot pieces = slot(shape_.heads * head);
    const StridedSlices whole{0, head}, last{head - kept, head};
    program_.steps.push_back(Copy{q_, pieces, last, last, shape_.heads, kept});
    program_.steps.push_back(
        HeadLinear{q_, pieces, whole, whole, matrices(gguf::Type::F32, shape_.heads, head - kept, kept)});
    program_.steps.push_back(Copy{pieces, q_, {}, {}, 1, shape_.heads * head});
}

Program with_separate_appends(const Program &program) {
    Program separate = program;
    separate.steps.clear();
    for (const Step &step : program.steps) {
        const auto *attention = std::get_if<Attention>(&step);
        if (attention == nullptr || attention->k == kNoSlot) {
            separate.steps.push_back(step);
            continue;
        }
        Attention appends = *attention, attends = *attention;
        appends.q = appends.out = appends.chosen = kNoSlot;
        attends.k = attends.v = kNoSlot;
        separate.steps.push_back(appends);
        separate.steps.push_back(attends);
    }
    return separate;
}

std::vector<Row> reference_logits(const Program &program, std::span<const int32_t> tokens) {
    const std::vector<float> all = kernels::reference::logits_of(program, tokens);
    std::vector<Row> logits;
    const auto vocab = static_cast<size_t>(program.vocab);
    for (size_t i = 0; i < tokens.size(); ++i)
        logits.push_back(reference::to_row(std::span(all).subspan(i * vocab, vocab)));
    return logits;
}

}  // namespace runnel::tests
