// Bytes and operations of a pass, compared with sums computed by hand and with the definition of each window.
#include "engine/measure/pass_cost.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/window.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"

namespace runnel::measure {
namespace {

using kernels::Attention;

Attention attention_with(int32_t window, Attention::Window kind, int32_t sinks) {
    Attention attention{};
    attention.window = window, attention.window_kind = kind, attention.sink_cells = sinks;
    return attention;
}

// The definition in program.h.
bool sees(const Attention &a, int64_t p, int64_t cell) {
    if (cell > p) return false;
    if (a.window == 0 || cell < a.sink_cells) return true;
    if (a.window_kind == Attention::Window::Chunked) return cell >= p - p % a.window;
    return p - cell < a.window;
}

TEST_CASE("pass cost: counts the cells that at least one token of the pass attends to") {
    const unsigned seed = 11;
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 300; ++round) {
        const bool chunked = random() % 3 == 0;
        const Attention a = attention_with(static_cast<int32_t>(random() % 20),
                                           chunked ? Attention::Window::Chunked : Attention::Window::Sliding,
                                           chunked ? 0 : static_cast<int32_t>(random() % 6));
        const auto depth = static_cast<int64_t>(random() % 50),
                   tokens = static_cast<int64_t>(random() % 9 + 1);
        int64_t any = 0, alone = 0;
        for (int64_t cell = 0; cell < depth + tokens; ++cell) {
            bool seen = false;
            for (int64_t p = depth; p < depth + tokens; ++p) seen = seen || sees(a, p, cell);
            any += seen;
            alone += sees(a, depth, cell);
        }
        CAPTURE(a.window);
        CAPTURE(a.sink_cells);
        CAPTURE(chunked);
        CAPTURE(depth);
        CAPTURE(tokens);
        CHECK(visible_cells(a, depth) == alone);
        CHECK(cells_in_sight(a, depth, tokens) == any);
    }
}

TEST_CASE("pass cost: a small model costs what a computation by hand gives") {
    // Two layers of width 64: q 64 x 64, k and v 32 x 64, output 64 x 64, gate, up and down 96 x 64, and the
    // output matrix 50 x 64; all F32.
    const tests::TinyProgram tiny({}, 3);
    const kernels::Program &program = tiny.program();
    const double layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64, output = 50 * 64;
    const PassCost one = pass_cost(program, 100, 1);
    CHECK(one.matrix_operations == 2 * (2 * layer + output));
    // 101 cells of 2 heads, 16 + 16 values of 2 bytes, in 2 layers.
    CHECK(one.cache_read == 101 * 2 * 32 * 2 * 2);
    CHECK(one.cache_written == 2 * 32 * 2 * 2);
    CHECK(one.scores == 2 * 4 * 101);
    CHECK(one.attention_operations == 2 * 4 * 101 * 2 * (16 + 16));
    CHECK(one.states == 0);
    CHECK(one.bytes() == one.weights + one.cache_read + one.cache_written);
    CHECK(one.intensity() == doctest::Approx(one.operations() / one.bytes()));

    // Without queries, keys and values are written all the same, and nothing is read.
    kernels::Program appends = program;
    for (kernels::Step &step : appends.steps)
        if (auto *a = std::get_if<Attention>(&step)) a->q = a->out = kernels::kNoSlot;
    const PassCost only = pass_cost(appends, 100, 1);
    CHECK(only.cache_written == one.cache_written);
    CHECK(only.cache_read == 0);
    CHECK(only.scores == 0);
    CHECK(only.attention_operations == 0);

    // A text of 10 tokens has 10 * 11 / 2 = 55 causal scores per head and layer.
    const PassCost prompt = pass_cost(program, 0, 10, {}, 1);
    CHECK(prompt.scores == 2 * 4 * 55);
    CHECK(prompt.matrix_operations == 2 * (10 * 2 * layer + output));
    CHECK(prompt.cache_read == 10 * 2 * 32 * 2 * 2);

    // 8.5 bits per value of Q8_0 are 34 bytes per 32 values; rows of 16 values have no such block.
    const tests::TinyProgram wide({.head_dim_k = 32, .head_dim_v = 32}, 3);
    const decode::CacheTypes types{kernels::CacheType::Q8_0, kernels::CacheType::F16};
    CHECK(pass_cost(wide.program(), 7, 1, types).cache_read == 8 * 2 * (34 + 64) * 2);
}

TEST_CASE(
    "pass cost: the cost of decoding is the mean over its passes, and weights agree with the program's own "
    "count") {
    for (const char *arch : {"llama", "gemma3", "qwen3moe", "deepseek2", "mamba2"}) {
        CAPTURE(arch);
        testing::ModelShape shape;
        shape.arch = arch, shape.type = "Q8_0", shape.layers = 6;
        const testing::TemporaryModel model(shape);
        const model::Model built = model::build(model.file);
        const kernels::Program &program = built.program;
        const PassCost one = pass_cost(program, 40, 1);
        CHECK(one.weights == doctest::Approx(static_cast<double>(program.weight_bytes_per_token())));
        CHECK(pass_cost(program, 0, 7, {}, 0).matrix_operations ==
              doctest::Approx(7 * program.operations_per_token()));
        CHECK(one.states == 2.0 * static_cast<double>(kernels::state_bytes(program)));
        double bytes = 0, operations = 0, scores = 0;
        for (int64_t i = 0; i < 5; ++i) {
            const PassCost pass = pass_cost(program, 38 + i, 1);
            bytes += pass.bytes() / 5, operations += pass.operations() / 5, scores += pass.scores / 5;
        }
        const PassCost mean = decode_cost(program, 38, 5);
        CHECK(mean.bytes() == doctest::Approx(bytes));
        CHECK(mean.operations() == doctest::Approx(operations));
        CHECK(mean.scores == doctest::Approx(scores));
    }
}

TEST_CASE("pass cost: with a window, the bytes of a token do not depend on the depth") {
    const tests::TinyProgram tiny({}, 3);
    kernels::Program program = tiny.program();
    const double full = pass_cost(program, 8192, 1).cache_read;
    model::impose_window(program, 512, 4);
    CHECK(pass_cost(program, 8192, 1).cache_read == full / 8193 * 516);
    CHECK(pass_cost(program, 100'000, 1).bytes() == pass_cost(program, 8192, 1).bytes());
    CHECK(pass_cost(program, 300, 1).cache_read == full / 8193 * 301);
}

}  // namespace
}  // namespace runnel::measure
