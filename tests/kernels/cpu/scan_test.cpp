// The kernels of recurrent steps: compared with double precision, and bit-equal between instruction sets and
// for any division of the tokens.
#include "kernels/cpu/scan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vector.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/support/model_maker.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels;
using namespace runnel::kernels::cpu;
using reference::Row;

namespace {

using Floats = std::vector<float>;

Floats normal(std::mt19937 &rng, size_t n, float deviation, float mean = 0) {
    std::normal_distribution<float> draw(mean, deviation);
    Floats out(n);
    for (float &x : out) x = draw(rng);
    return out;
}

std::vector<const ScanKernels *> all_tables() {
    std::vector<const ScanKernels *> all = {&kScanScalar};
    if (cpu_has_avx2()) all.push_back(&kScanAvx2);
    if (cpu_has_avx512()) all.push_back(&kScanAvx512);
    return all;
}

void check_close(const Floats &got, const Row &expected, double tolerance) {
    REQUIRE(got.size() == expected.size());
    double largest = 0, worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        worst = tests::larger(worst, std::abs(double{got[i]} - expected[i]));
    }
    CHECK(worst <= tolerance * std::max(largest, 1.0));
}

// Random lengths that add up to `tokens`.
std::vector<int64_t> division(std::mt19937 &rng, int64_t tokens) {
    std::vector<int64_t> parts;
    while (tokens > 0) {
        parts.push_back(std::min<int64_t>(tokens, 1 + static_cast<int64_t>(rng() % 9)));
        tokens -= parts.back();
    }
    return parts;
}

}  // namespace

TEST_CASE("scan: states of any shape, decay and rule agree with double precision") {
    for (uint32_t seed = 0; seed < 24; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int64_t tokens = 40, dk = 1 + static_cast<int64_t>(rng() % 70),
                      cols = seed % 2 ? kScanColumns : 1 + static_cast<int64_t>(rng() % kScanColumns);
        const bool erase = seed % 3 == 2, delta = !erase && rng() % 2, channel = rng() % 2,
                   fixed = !channel && rng() % 3 == 0, strong = rng() % 2, before = seed % 4 == 1;
        const float skip = rng() % 2 ? 0.7f : 0.0f;
        const auto rows = [&](int64_t width) { return static_cast<size_t>(tokens * width); };
        Floats q = normal(rng, rows(dk), 1), k = normal(rng, rows(dk), 1 / std::sqrt(static_cast<float>(dk)));
        const Floats v = normal(rng, rows(cols), 1);
        const Floats erase_read = normal(rng, rows(dk), 0.7f / std::sqrt(static_cast<float>(dk))),
                     erase_write = normal(rng, rows(dk), 0.7f / std::sqrt(static_cast<float>(dk)));
        Floats decay(rows(channel ? dk : 1)), strength(rows(1));
        for (float &w : decay) w = 0.9f + 0.1f * static_cast<float>(rng() % 1000) / 1000;
        for (float &b : strength) b = static_cast<float>(rng() % 1000) / 1000;
        LinearScanPiece piece{.q = q.data(),
                              .k = k.data(),
                              .v = v.data(),
                              .decay = fixed ? nullptr : decay.data(),
                              .strength = strong ? strength.data() : nullptr,
                              .erase_read = erase ? erase_read.data() : nullptr,
                              .erase_write = erase ? erase_write.data() : nullptr,
                              .out = nullptr,
                              .qk_stride = dk,
                              .v_stride = cols,
                              .decay_stride = channel ? dk : 1,
                              .strength_stride = 1,
                              .erase_stride = dk,
                              .out_stride = cols,
                              .dk = dk,
                              .cols = cols,
                              .fixed_decay = 0.93f,
                              .skip = skip,
                              .channel_decay = channel,
                              .delta = delta,
                              .reads_before = before,
                              .streams = false};
        Row expected, state;
        const LinearScan step{.q = 0,
                              .k = 0,
                              .v = 0,
                              .out = 0,
                              .heads = 1,
                              .key_heads = 1,
                              .dk = static_cast<int32_t>(dk),
                              .dv = static_cast<int32_t>(cols),
                              .delta = delta,
                              .reads_before = before};
        for (int64_t t = 0; t < tokens; ++t) {
            const auto row = [&](const Floats &all, int64_t width) {
                return Row(all.begin() + t * width, all.begin() + (t + 1) * width);
            };
            const Row rq = row(q, dk), rk = row(k, dk), rv = row(v, cols),
                      w = fixed ? Row{double{0.93f}} : row(decay, channel ? dk : 1),
                      b = strong ? row(strength, 1) : Row{}, s = {double{skip}};
            const Row er = erase ? row(erase_read, dk) : Row{}, ew = erase ? row(erase_write, dk) : Row{};
            const Row out = reference::linear_scan(step,
                                                   {.q = rq,
                                                    .k = rk,
                                                    .v = rv,
                                                    .decay = w,
                                                    .strength = b,
                                                    .erase_read = er,
                                                    .erase_write = ew,
                                                    .rate = {},
                                                    .skip = s},
                                                   state);
            expected.insert(expected.end(), out.begin(), out.end());
        }
        Floats first_out, first_state;
        // Trials 3 and 4 are of single tokens, past the caches if the state is aligned, which it is in trial 3.
        for (const ScanKernels *table : all_tables())
            for (int trial = 0; trial < 5; ++trial) {
                Floats out(rows(cols)), memory(static_cast<size_t>(2 * dk * cols) + 32, -1);
                auto *const aligned = reinterpret_cast<float *>(
                    (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64 + (trial == 4 ? 4 : 0));
                float *const states[2] = {aligned, aligned + dk * cols};
                const float *from = nullptr;
                int64_t t = 0;
                size_t to = 0;
                for (const int64_t count : trial == 0   ? std::vector{tokens}
                                           : trial >= 3 ? std::vector<int64_t>(tokens, 1)
                                                        : division(rng, tokens)) {
                    LinearScanPiece part = piece;
                    part.streams = trial >= 3;
                    part.q += t * dk, part.k += t * dk, part.v += t * cols;
                    if (part.decay) part.decay += t * part.decay_stride;
                    if (part.strength) part.strength += t;
                    if (erase) part.erase_read += t * dk, part.erase_write += t * dk;
                    part.out = out.data() + t * cols;
                    table->linear(part, count, from, states[to]);
                    from = states[to];
                    to = 1 - to, t += count;
                }
                const Floats last(from, from + dk * cols);
                if (first_out.empty()) first_out = out, first_state = last;
                CHECK(tests::same_bits(out, first_out));
                CHECK(tests::same_bits(last, first_state));
            }
        check_close(first_out, expected, 3e-5);
        check_close(first_state, state, 3e-5);
    }
}

TEST_CASE("scan: Mamba's scan, gates and convolutions agree with double precision") {
    for (uint32_t seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        const int64_t tokens = 30, n = 1 + static_cast<int64_t>(rng() % 20),
                      cols = seed % 2 ? kScanColumns : 1 + static_cast<int64_t>(rng() % kScanColumns);
        const auto size = [](int64_t count) { return static_cast<size_t>(count); };
        const Floats x = normal(rng, size(tokens * cols), 1), raw = normal(rng, size(tokens * cols), 3),
                     b = normal(rng, size(tokens * n), 1), c = normal(rng, size(tokens * n), 1),
                     bias = normal(rng, size(cols), 1), skip = normal(rng, size(cols), 1);
        Floats rate = normal(rng, size(n * cols), 0.2f, -0.8f);
        Floats first_dt, first_decay, first_out, first_conv;
        for (const ScanKernels *table : all_tables()) {
            Floats dt(raw.size()), decay(raw.size()), bounded(raw.size()), of_exp(raw.size()), out(x.size()),
                conv(x.size());
            Floats states[2] = {Floats(size(n * cols), -1), Floats(size(n * cols), -1)};
            const float *from = nullptr;
            int64_t t = 0;
            size_t to = 0;
            for (const int64_t count : division(rng, tokens)) {
                for (int64_t i = t; i < t + count; ++i) {
                    table->gate(ScanGate::Form::Softplus, raw.data() + i * cols, bias.data(), skip.data(),
                                false, 0, cols, dt.data() + i * cols, decay.data() + i * cols);
                    table->gate(ScanGate::Form::Sigmoid, raw.data() + i * cols, bias.data(), skip.data(),
                                true, -3, cols, nullptr, bounded.data() + i * cols);
                    table->gate(ScanGate::Form::Exponential, raw.data() + i * cols, bias.data(), nullptr,
                                false, 0, cols, nullptr, of_exp.data() + i * cols);
                }
                table->selective({.x = x.data() + t * cols,
                                  .dt = dt.data() + t * cols,
                                  .b = b.data() + t * n,
                                  .c = c.data() + t * n,
                                  .rate = rate.data(),
                                  .skip = skip.data(),
                                  .out = out.data() + t * cols,
                                  .stride = cols,
                                  .bc_stride = n,
                                  .rate_stride = cols,
                                  .n = n,
                                  .cols = cols},
                                 count, from, states[to].data());
                from = states[to].data();
                to = 1 - to, t += count;
            }
            const Floats zeros(size(cols));
            const Floats weight(rate.begin(), rate.begin() + std::min<int64_t>(n, 4) * cols);
            const auto taps = std::min<int64_t>(n, 4);
            for (t = 0; t < tokens; ++t) {
                std::vector<const float *> rows;
                for (int64_t j = t - taps + 1; j <= t; ++j)
                    rows.push_back(j < 0 ? zeros.data() : x.data() + j * cols);
                table->conv(rows.data(), taps, weight.data(), cols, bias.data(), true, cols,
                            conv.data() + t * cols);
            }
            decay.insert(decay.end(), bounded.begin(), bounded.end());
            decay.insert(decay.end(), of_exp.begin(), of_exp.end());
            if (first_out.empty()) first_dt = dt, first_decay = decay, first_out = out, first_conv = conv;
            CHECK(tests::same_bits(dt, first_dt));
            CHECK(tests::same_bits(decay, first_decay));
            CHECK(tests::same_bits(out, first_out));
            CHECK(tests::same_bits(conv, first_conv));
        }
        Row dt, decay, bounded, of_exp, out, conv, state, window;
        const Row rates = reference::to_row(rate), skips = reference::to_row(skip),
                  biases = reference::to_row(bias);
        const Row weight(rates.begin(), rates.begin() + std::min<int64_t>(n, 4) * cols);
        const ShortConv step{.in = 0, .out = 0, .weight = 0, .silu = true};
        for (int64_t t = 0; t < tokens; ++t) {
            const auto row = [&](const Floats &all, int64_t width) {
                return Row(all.begin() + t * width, all.begin() + (t + 1) * width);
            };
            const auto add = [](Row &to, const Row &more) { to.insert(to.end(), more.begin(), more.end()); };
            const auto plain = reference::scan_gate({.in = 0}, row(raw, cols), biases, skips);
            add(dt, plain.step), add(decay, plain.decay);
            add(bounded, reference::scan_gate({.in = 0, .form = ScanGate::Form::Sigmoid, .bound = -3},
                                              row(raw, cols), biases, std::span(skips).first(1))
                             .decay);
            add(of_exp, reference::scan_gate({.in = 0, .form = ScanGate::Form::Exponential}, row(raw, cols),
                                             biases, {})
                            .decay);
            // Uses the kernels' own steps, because only the scan is compared here.
            add(out, reference::selective_scan(row(x, cols), row(first_dt, cols), row(b, n), row(c, n), rates,
                                               skips, state));
            if (n >= 2) add(conv, reference::short_conv(step, row(x, cols), weight, biases, window));
        }
        check_close(first_dt, dt, 1e-6);
        decay.insert(decay.end(), bounded.begin(), bounded.end());
        decay.insert(decay.end(), of_exp.begin(), of_exp.end());
        check_close(first_decay, decay, 2e-6);
        check_close(first_out, out, 2e-5);
        if (n >= 2) check_close(first_conv, conv, 1e-5);
    }
}

TEST_CASE("recurrent steps: same bits whatever the chunks, batch, threads, instruction set and roll-backs") {
    for (const char *arch :
         {"qwen35", "qwen3next-old", "lfm2", "mamba2", "falcon-mamba", "falcon-h1", "rwkv7", "rwkv6"}) {
        CAPTURE(arch);
        testing::ModelShape shape;
        shape.arch = arch, shape.layers = 3, shape.width = 32, shape.ff = 40, shape.heads = 4;
        shape.vocab = 260, shape.threads = 1;
        if (std::string(arch) == "qwen3next-old") shape.experts.used = 8;
        const testing::TemporaryModel file(shape);
        const model::Model model = model::build(file.file);
        std::mt19937 rng(9);
        const tests::RecurrentTexts texts(model.program, tests::random_texts({70, 70}, 260, rng));
        std::vector<tests::TextLogits> expected;
        for (int trial = 0; trial < 5; ++trial) {
            CAPTURE(trial);
            const char *isa = trial == 1 ? "scalar" : trial == 2 && cpu_has_avx2() ? "avx2" : "";
            const auto backend = make_cpu_backend(1 + trial % 2, isa);
            backend->load(model.program, texts.cache(), texts.max_tokens());
            const auto logits = texts.run(*backend, trial == 0 ? nullptr : &rng);
            if (trial == 0)
                expected = logits;
            else
                tests::check_same(logits, expected);
        }
    }
}
