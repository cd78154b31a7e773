// Ranks, shares and programs for tests of splits by rows, on CPUs and on the emulator's GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/simt/simt.h"
#include "tests/support/program_runs.h"
#include "tests/support/tiny_program.h"

namespace runnel::tests {

using Ranks = std::vector<std::unique_ptr<Backend>>;
using Shares = std::vector<double>;

using MakeDevice = std::unique_ptr<Backend> (*)(int number);
inline std::unique_ptr<Backend> one_cpu(int number) {
    return cpu::make_cpu_backend(1 + number % 2);
}
inline std::unique_ptr<Backend> one_gpu(int number) {
    return cuda::make_cuda_backend(number);
}

struct Gpus {
    explicit Gpus(int count) { simt::settings().devices = count; }
    ~Gpus() { simt::settings() = {}; }
};

inline Ranks make_ranks(MakeDevice make, size_t count) {
    Ranks all;
    for (size_t i = 0; i < count; ++i) all.push_back(make(static_cast<int>(i)));
    return all;
}

inline std::vector<std::string> rank_names(size_t count) {
    std::vector<std::string> all;
    for (size_t i = 0; i < count; ++i) all.push_back("number " + std::to_string(i));
    return all;
}

// Equal ones, random ones, and random ones of which one is 0.
inline Shares shares_of(size_t ranks, uint32_t kind) {
    std::mt19937 random(kind);
    Shares shares(ranks, 1);
    if (kind % 3 > 0)
        for (double &share : shares) share = static_cast<double>(1 + random() % 5);
    if (kind % 3 > 1 && ranks > 1) shares[random() % ranks] = 0;
    return shares;
}

// All options of mixtures, with widths of one to six units (hidden_rows_unit()).
inline TinyShape mixture(uint32_t seed) {
    using Kind = Activation::Kind;
    constexpr gguf::Type kTypes[] = {gguf::Type::Q8_0, gguf::Type::F16, gguf::Type::Q4_0, gguf::Type::F32};
    TinyShape shape{.layers = 1, .type = kTypes[seed % 4]};
    const auto used = static_cast<int32_t>(1 + seed % 4);
    shape.feed_forward = used == 2 ? 96 : used == 3 ? 128 : used == 4 ? 48 : 64 * (1 + seed / 4 % 3);
    shape.width = 96, shape.vocab = 60;
    TinyExperts &e = shape.experts;
    e = {.count = 6, .routing = {.used = used}};
    e.biases = seed % 3 == 0, e.merged = seed % 2 == 0, e.shared = seed % 5 == 0;
    e.scales = seed % 3 == 1, e.in_scales = seed % 3 == 2;
    e.weights_on_input = seed % 7 == 0, e.selection_bias = seed % 4 == 3;
    e.act = std::array{Kind::Silu, Kind::SiluClamped, Kind::GeluTanh, Kind::LimitThenSilu}[seed / 2 % 4];
    e.routing.normalize = seed % 4 == 1;
    if (seed % 6 == 5) e.routing.groups = 3, e.routing.groups_used = 2;
    return shape;
}

// A program in two parts on a backend, which gives the slot between them and takes it back: the slot's values, and the
// logits of the last token.
struct TwoParts {
    std::vector<float> states, logits;
};
inline TwoParts run_two_parts(Backend &backend, const TinyProgram &tiny, uint32_t seed) {
    Program program = tiny.program();
    // The residual stream, which is gathered at the end of the first part.
    const Slot hidden = std::get<Norm>(program.steps[program.steps.size() - 2]).in;
    const int64_t width = program.slots[static_cast<size_t>(hidden)].width;
    program.parts = {{program.steps.size() - 2, {}, {hidden}}, {program.steps.size(), {hidden}, {}}};
    backend.load(program, {{kBlocks}}, kMaxTokens);
    const std::vector<int32_t> tokens = random_tokens(6, seed), positions = {0, 1, 2, 3, 4, 5}, rows = {5};
    const std::vector<BlockId> table = {0};
    const SequenceSpan span{0, 6, 0, {table}};
    Batch batch{tokens, positions, {&span, 1}, rows};
    REQUIRE(backend.execute(batch, {}));
    TwoParts result;
    const SlotRows rows_of = backend.exchange(hidden);
    for (int64_t t = 0; t < 6; ++t) {
        float *row = rows_of.data + t * rows_of.stride;
        result.states.insert(result.states.end(), row, row + width);
        for (int64_t i = 0; i < width; ++i) row[i] += 0.25f;  // what another device might return
    }
    result.logits.resize(static_cast<size_t>(program.vocab));
    batch.part = 1;
    REQUIRE(backend.execute(batch, result.logits));
    return result;
}

}  // namespace runnel::tests
