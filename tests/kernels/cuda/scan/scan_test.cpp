// Recurrent steps on the emulated device: random programs of one step between tables and logits, compared
// with double precision and with themselves in other chunks, batches and state slots.
#include "kernels/cuda/scan/scan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/simt/simt.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::RecurrentTexts;
using tests::TextLogits;

namespace {

constexpr int64_t kIds = 30;

int32_t between(std::mt19937 &random, int32_t least, int32_t most) {
    return least + static_cast<int32_t>(random() % static_cast<uint32_t>(most - least + 1));
}

using Draw = std::function<float(std::mt19937 &)>;
Draw normal(float deviation, float mean = 0) {
    return [=](std::mt19937 &random) { return std::normal_distribution<float>(mean, deviation)(random); };
}
Draw uniform(float least, float most) {
    return [=](std::mt19937 &random) { return std::uniform_real_distribution<float>(least, most)(random); };
}

// Every input slot is filled from a table of its own, one row per token id; the logits are the output slot.
class ScanProgram {
  public:
    explicit ScanProgram(std::mt19937 &random) : random_(random) {}

    Slot slot(int64_t width) {
        program_.slots.push_back({"slot " + std::to_string(program_.slots.size()), width});
        return static_cast<Slot>(program_.slots.size() - 1);
    }
    Slot input(int64_t width, const Draw &draw) {
        const Slot id = slot(width);
        program_.steps.push_back(Embed{weight(kIds, width, draw), id});
        return id;
    }
    WeightId weight(int64_t rows, int64_t cols, const Draw &draw) {
        std::vector<float> values(static_cast<size_t>(rows * cols));
        for (float &v : values) v = draw(random_);
        return keep(rows, cols, std::move(values));
    }
    int32_t state(int64_t floats) {
        program_.state_layers.push_back({floats});
        return static_cast<int32_t>(program_.state_layers.size() - 1);
    }
    void step(const Step &step) { program_.steps.push_back(step); }
    Program finished(Slot out) {
        const int64_t width = program_.slots[static_cast<size_t>(out)].width;
        std::vector<float> ones(static_cast<size_t>(width * width));
        for (int64_t i = 0; i < width; ++i) ones[static_cast<size_t>(i * width + i)] = 1;
        program_.steps.push_back(Logits{.in = out, .weight = keep(width, width, std::move(ones))});
        program_.vocab = width;
        return program_;
    }
    bool chance() { return random_() % 2 == 0; }

  private:
    WeightId keep(int64_t rows, int64_t cols, std::vector<float> values) {
        const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
        program_.constants.push_back(kept);
        program_.weights.push_back(
            {"values", gguf::Type::F32, rows, cols, reinterpret_cast<const std::byte *>(kept->data())});
        return static_cast<WeightId>(program_.weights.size() - 1);
    }

    std::mt19937 &random_;
    Program program_;
};

Program convolution(std::mt19937 &random) {
    ScanProgram p(random);
    const int64_t width = between(random, 1, 140), taps = between(random, 2, 5);
    const Slot in = p.input(width, normal(1)), out = p.slot(width);
    p.step(ShortConv{.in = in,
                     .out = out,
                     .weight = p.weight(taps, width, normal(0.5f)),
                     .bias = p.chance() ? p.weight(1, width, normal(0.5f)) : kNoWeight,
                     .silu = p.chance(),
                     .state = p.state((taps - 1) * width)});
    return p.finished(out);
}

// Gates have no state; their decay feeds a convolution, which has one.
enum class Reads { Step, Decay, BoundedDecay, ExponentialDecay };
Program gates(std::mt19937 &random, Reads reads) {
    ScanProgram p(random);
    const int64_t shared = between(random, 1, 3), rates = between(random, 1, 30), width = shared * rates;
    using Form = ScanGate::Form;
    const Form form = reads == Reads::BoundedDecay       ? Form::Sigmoid
                      : reads == Reads::ExponentialDecay ? Form::Exponential
                                                         : Form::Softplus;
    const Slot in = p.input(width, normal(4)), decay = p.chance() ? p.slot(width) : in, out = p.slot(width);
    const Slot step = reads == Reads::Step ? p.slot(width) : kNoSlot;
    p.step(ScanGate{.in = in,
                    .step = step,
                    .decay = decay,
                    .bias = p.chance() ? p.weight(1, width, normal(1)) : kNoWeight,
                    .rate = p.weight(1, rates, normal(0.3f, -0.8f)),
                    .form = form,
                    .bound = form == Form::Sigmoid ? -4.0f : 0.0f});
    p.step(ShortConv{.in = step == kNoSlot ? decay : step,
                     .out = out,
                     .weight = p.weight(2, width, normal(1)),
                     .state = p.state(width)});
    return p.finished(out);
}

Program matrices(std::mt19937 &random, int32_t dk) {
    ScanProgram p(random);
    const int32_t key_heads = between(random, 1, 2), heads = key_heads * between(random, 1, 2),
                  dv = between(random, 1, 9);
    const bool channels = p.chance(), fixed = !channels && p.chance(), erases = p.chance();
    const float of_erase = 0.7f / std::sqrt(static_cast<float>(dk));
    const Slot q = p.input(key_heads * dk, normal(1)),
               k = p.input(key_heads * dk, normal(1 / std::sqrt(static_cast<float>(dk)))),
               v = p.input(heads * dv, normal(1)), out = p.slot(heads * dv);
    p.step(LinearScan{.q = q,
                      .k = k,
                      .v = v,
                      .out = out,
                      .decay = fixed ? kNoSlot : p.input(channels ? heads * dk : heads, uniform(0.85f, 1)),
                      .strength = p.chance() ? p.input(heads, uniform(0, 1)) : kNoSlot,
                      .erase_read = erases ? p.input(key_heads * dk, normal(of_erase)) : kNoSlot,
                      .erase_write = erases ? p.input(key_heads * dk, normal(of_erase)) : kNoSlot,
                      .rate = fixed && p.chance() ? p.weight(1, heads, uniform(-0.2f, 0)) : kNoWeight,
                      .skip = p.chance() ? p.weight(1, heads, normal(1)) : kNoWeight,
                      .heads = heads,
                      .key_heads = key_heads,
                      .dk = dk,
                      .dv = dv,
                      .neighbors = p.chance(),
                      .delta = !erases && p.chance(),
                      .reads_before = p.chance(),
                      .state = p.state(int64_t{heads} * dk * dv)});
    return p.finished(out);
}

Program selective(std::mt19937 &random, int32_t n) {
    ScanProgram p(random);
    const int64_t width = between(random, 1, 20);
    const Slot x = p.input(width, normal(1)), dt = p.input(width, uniform(0, 1)), b = p.input(n, normal(1)),
               c = p.input(n, normal(1)), out = p.slot(width);
    p.step(SelectiveScan{.x = x,
                         .dt = dt,
                         .out = out,
                         .b = b,
                         .c = c,
                         .rate = p.weight(n, width, uniform(-1, -0.1f)),
                         .skip = p.weight(1, width, normal(1)),
                         .state = p.state(n * width)});
    return p.finished(out);
}

std::unique_ptr<Backend> loaded(const Program &program, const RecurrentTexts &texts) {
    auto backend = cuda::make_cuda_backend(0);
    backend->load(program, texts.cache(), texts.max_tokens());
    return backend;
}

void check(const Program &program, std::mt19937 &random) {
    const auto tokens = tests::random_texts({19, 1, 10}, kIds, random);
    const RecurrentTexts texts(program, tokens);
    const auto backend = loaded(program, texts);
    const std::vector<TextLogits> whole = texts.run(*backend, nullptr);
    for (size_t i = 0; i < tokens.size(); ++i) {
        const std::vector<reference::Row> expected = tests::reference_logits(program, tokens[i]);
        double largest = 1, worst = 0;
        for (size_t t = 0; t < expected.size(); ++t)
            for (size_t c = 0; c < expected[t].size(); ++c) {
                largest = std::max(largest, std::abs(expected[t][c]));
                worst = tests::larger(worst, std::abs(double{whole[i][t][c]} - expected[t][c]));
            }
        CHECK(worst <= 2e-5 * largest);
    }
    tests::check_same(texts.run(*backend, &random), whole);
}

}  // namespace

TEST_CASE(
    "cuda scan: convolutions and gates of any shape, with the same bits whatever the chunks and batch") {
    for (uint32_t seed = 0; seed < 4; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        simt::settings().seed = seed;
        check(convolution(random), random);
        check(gates(random, static_cast<Reads>(seed % 4)), random);
    }
    simt::settings() = {};
}

TEST_CASE(
    "cuda scan: matrices of any shape, decay and rule, with the same bits whatever the chunks and batch") {
    uint32_t seed = 0;
    for (const int32_t dk : {1, 7, 16, 30, 61, 64, 65, 96, 130, 256}) {
        CAPTURE(dk);
        std::mt19937 random(++seed);
        simt::settings().seed = seed;
        check(matrices(random, dk), random);
    }
    simt::settings() = {};
}

TEST_CASE("cuda scan: Mamba's scan of any shape, with the same bits whatever the chunks and batch") {
    uint32_t seed = 40;
    for (const int32_t n : {1, 4, 11, 16, 17, 50}) {
        CAPTURE(n);
        std::mt19937 random(++seed);
        simt::settings().seed = seed;
        check(selective(random, n), random);
    }
    simt::settings() = {};
}

TEST_CASE("cuda scan: a state that was read continues in another slot and another backend") {
    std::mt19937 random(5);
    for (const Program &program : {convolution(random), matrices(random, 20), selective(random, 5)}) {
        const auto tokens = tests::random_texts({12}, kIds, random)[0];
        const auto step = [&](Backend &backend, size_t from, size_t count, StateId state, StateId to) {
            std::vector<int32_t> positions(count, 0);
            const SequenceSpan span{.first = 0,
                                    .count = static_cast<int32_t>(count),
                                    .past = static_cast<int32_t>(from),
                                    .tables = {},
                                    .state = state,
                                    .state_writes = {{static_cast<int32_t>(count), to}}};
            const std::vector<int32_t> last = {static_cast<int32_t>(count) - 1};
            std::vector<float> logits(static_cast<size_t>(program.vocab));
            REQUIRE(backend.execute({std::span(tokens).subspan(from, count), positions, {&span, 1}, last},
                                    logits));
            return logits;
        };
        const auto a = cuda::make_cuda_backend(0), b = cuda::make_cuda_backend(0);
        a->load(program, {.blocks = {}, .states = 3}, 12);
        b->load(program, {.blocks = {}, .states = 2}, 12);
        step(*a, 0, 8, kNoState, 2);
        const std::vector<float> expected = step(*a, 8, 4, 2, 0);
        std::vector<std::byte> kept(state_bytes(program));
        a->read_state(2, kept);
        step(*b, 0, 3, kNoState, 1);
        b->write_state(1, kept);
        CHECK(tests::same_bits(step(*b, 8, 4, 1, 0), expected));
        a->write_state(1, kept);
        CHECK(tests::same_bits(step(*a, 8, 4, 1, 0), expected));
    }
}

TEST_CASE("cuda scan: a state is read once and written once per batch, however many tokens it has") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    std::mt19937 random(3);
    for (const Program &program : {matrices(random, 32), selective(random, 16)}) {
        const uint64_t bytes = state_bytes(program);
        const auto backend = cuda::make_cuda_backend(0);
        backend->load(program, {.blocks = {}, .states = 2}, 20);
        for (const int32_t count : {1, 20}) {
            const auto traffic = [&](StateId from, StateId to) {
                const std::vector<int32_t> tokens(static_cast<size_t>(count), 3);
                const SequenceSpan span{.first = 0,
                                        .count = count,
                                        .past = from == kNoState ? 0 : 9,
                                        .tables = {},
                                        .state = from,
                                        .state_writes = {{count, to}}};
                simt::take_reports();
                REQUIRE(backend->execute({tokens, tokens, {&span, 1}, {}}, std::span<float>{}));
                return simt::take_reports().back().traffic.at("states");
            };
            CHECK(traffic(kNoState, 0) == simt::Traffic{.written = bytes});
            CHECK(traffic(0, 1) == simt::Traffic{.read = bytes, .written = bytes});
        }
    }
}

TEST_CASE("cuda scan: load() allocates exactly the predicted bytes, and batches none") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts memory");
        return;
    }
    std::mt19937 random(8);
    for (const Program &program : {convolution(random), matrices(random, 13), selective(random, 7)}) {
        const RecurrentTexts texts(program, tests::random_texts({20, 9}, kIds, random));
        const MemoryNeed need = cuda::memory_need(program, texts.cache(), texts.max_tokens());
        CHECK(need.cache == cuda::cache_memory(program, texts.cache(), texts.max_tokens()));
        CHECK(need.cache >= state_bytes(program) * static_cast<size_t>(texts.cache().states));
        CHECK(cuda::cache_memory(program, {}, texts.max_tokens()) == 0);
        simt::take_peak_memory();
        const size_t before = simt::take_peak_memory();
        const auto backend = loaded(program, texts);
        CHECK(simt::take_peak_memory() - before <= need.all());  // including the buffers of the upload
        const size_t taken = simt::take_peak_memory() - before;
        CHECK(taken == need.all() - cuda::kDriverReserve);
        texts.run(*backend, &random);
        CHECK(simt::take_peak_memory() - before == taken);
    }
}

TEST_CASE("cuda scan: states beyond the kernels' registers are refused before the upload") {
    std::mt19937 random(6);
    const auto refusal = [](const std::string &what) {
        return "the GPU has no kernel for recurrent " + what + " yet";
    };
    const std::string keys = refusal("heads with 257 key channels (at most 256)"),
                      elements = refusal("layers with 65 states per channel (at most 64)");
    CHECK_NOTHROW(cuda::plan(matrices(random, cuda::kMostScanKeys)));
    CHECK_THROWS_WITH_AS(cuda::plan(matrices(random, cuda::kMostScanKeys + 1)), keys.c_str(), BackendError);
    CHECK_NOTHROW(cuda::plan(selective(random, cuda::kMostScanElements)));
    CHECK_THROWS_WITH_AS(cuda::plan(selective(random, cuda::kMostScanElements + 1)), elements.c_str(),
                         BackendError);
}
