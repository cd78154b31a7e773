// The activations in front of every matrix, against the double-precision reference: a program that ends with an
// identity matrix in place of the matrix returns them as logits.
#include "kernels/activation_run.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/quantize/importance_sums.h"
#include "gguf/quantize.h"
#include "kernels/reference/operations.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/steps.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::testing;
using namespace runnel::kernels;
using quantize::ImportanceSums;
using reference::Row;

namespace {

constexpr int32_t kTokens = 40;

std::vector<int32_t> text() {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(3 + i * 7 % 250);
    return tokens;
}

// The content of a slot before a step: [tokens][width].
std::vector<Row> slot_before(Program program, size_t step, Slot slot, std::span<const int32_t> tokens) {
    const auto width = static_cast<size_t>(program.slots[static_cast<size_t>(slot)].width);
    std::vector<float> identity(width * width, 0.0f);
    for (size_t i = 0; i < width; ++i) identity[i * width + i] = 1;
    program.steps.resize(step);
    program.weights.push_back({"identity", gguf::Type::F32, static_cast<int64_t>(width),
                               static_cast<int64_t>(width),
                               reinterpret_cast<const std::byte *>(identity.data())});
    program.steps.push_back(Logits{slot, static_cast<WeightId>(program.weights.size() - 1)});
    program.vocab = static_cast<int64_t>(width);
    const std::vector<float> values = reference::logits_of(program, tokens);
    std::vector<Row> rows;
    for (size_t t = 0; t < tokens.size(); ++t)
        rows.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(t * width),
                          values.begin() + static_cast<std::ptrdiff_t>((t + 1) * width));
    return rows;
}

struct Expected {
    std::map<std::string, ImportanceSums::Entry> entries;

    void add(const std::string &name, size_t matrix, size_t matrices, std::span<const double> x) {
        ImportanceSums::Entry &entry = entries[name];
        entry.sums.resize(x.size() * matrices);
        entry.counts.resize(matrices);
        for (size_t i = 0; i < x.size(); ++i) entry.sums[matrix * x.size() + i] += x[i] * x[i];
        ++entry.counts[matrix];
    }
};

Row doubles_of(const Program &program, WeightId id, size_t matrix = 0) {
    if (id == kNoWeight) return {};
    const Weight &w = program.weights[static_cast<size_t>(id)];
    std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
    gguf::dequantize_row(w.type, w.data + w.matrix_bytes() * matrix, values.data(), w.rows * w.cols);
    return {values.begin(), values.end()};
}

void add_experts(const Program &program, size_t index, const Experts &s, Expected &expected) {
    const auto name = [&](WeightId id) { return program.weights[static_cast<size_t>(id)].name; };
    const Weight &down = program.weights[static_cast<size_t>(s.down)];
    const auto experts = static_cast<size_t>(down.count), hidden = static_cast<size_t>(down.cols);
    const std::vector<Row> in = slot_before(program, index, s.in, text()),
                           logits = slot_before(program, index, s.logits, text());
    const Row selection = doubles_of(program, s.routing.selection_bias),
              scales = doubles_of(program, s.routing.expert_scales);
    const auto bias = [&](WeightId id, size_t e, size_t first) {
        Row part(hidden, 0.0);
        if (id == kNoWeight) return part;
        const Weight &w = program.weights[static_cast<size_t>(id)];
        std::vector<float> all(static_cast<size_t>(w.rows * w.cols * w.count));
        gguf::dequantize_row(w.type, w.data, all.data(), static_cast<int64_t>(all.size()));
        const size_t each = all.size() / experts;
        for (size_t i = 0; i < hidden; ++i) part[i] = all[e * each + first + i];
        return part;
    };
    for (size_t t = 0; t < in.size(); ++t)
        for (const auto &[e, w] : reference::route(logits[t], selection, s.routing)) {
            Row x = in[t];
            if (s.weights_on_input)
                for (double &value : x) value *= w * (scales.empty() ? 1 : scales[e]);
            expected.add(name(s.gate), e, experts, x);
            const Row both = reference::linear(doubles_of(program, s.gate, e), x);
            Row gate(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(hidden)), up;
            if (s.up != kNoWeight) {
                expected.add(name(s.up), e, experts, x);
                up = reference::linear(doubles_of(program, s.up, e), x);
            } else if (both.size() == 2 * hidden) {
                up.assign(both.begin() + static_cast<std::ptrdiff_t>(hidden), both.end());
            }
            const Row gate_scales = doubles_of(program, s.gate_scales),
                      up_scales = doubles_of(program, s.up_scales);
            for (double &value : gate) value *= gate_scales.empty() ? 1 : gate_scales[e];
            for (double &value : up) value *= up_scales.empty() ? 1 : up_scales[e];
            const Row gate_bias = bias(s.gate_bias, e, 0),
                      up_bias = s.up != kNoWeight ? bias(s.up_bias, e, 0)
                                                  : bias(s.gate_bias, e, up.empty() ? 0 : hidden);
            for (size_t i = 0; i < hidden; ++i) gate[i] += gate_bias[i];
            for (size_t i = 0; i < up.size(); ++i) up[i] += up_bias[i];
            expected.add(name(s.down), e, experts, reference::gate(s.act, gate, up));
        }
}

Expected expected_of(const Program &program) {
    Expected expected;
    for (size_t i = 0; i < program.steps.size(); ++i)
        std::visit(
            Overloaded{[&](const Linear &s) {
                           const std::vector<Row> in = slot_before(program, i, s.in, text());
                           std::vector<std::string> names;
                           for (const Linear::Part &part : s.parts) {
                               const std::string &name =
                                   program.weights[static_cast<size_t>(part.weight)].name;
                               if (std::ranges::find(names, name) != names.end()) continue;
                               names.push_back(name);
                               for (const Row &x : in) expected.add(name, 0, 1, x);
                           }
                       },
                       [&](const HeadLinear &s) {
                           const Weight &w = program.weights[static_cast<size_t>(s.weight)];
                           for (const Row &x : slot_before(program, i, s.in, text()))
                               for (int64_t h = 0; h < w.count; ++h)
                                   expected.add(w.name, static_cast<size_t>(h), static_cast<size_t>(w.count),
                                                std::span(x).subspan(
                                                    static_cast<size_t>(s.from.first + h * s.from.stride),
                                                    static_cast<size_t>(w.cols)));
                       },
                       [&](const Experts &s) { add_experts(program, i, s, expected); },
                       [&](const Logits &s) {
                           for (const Row &x : slot_before(program, i, s.in, text()))
                               expected.add(program.weights[static_cast<size_t>(s.weight)].name, 0, 1, x);
                       },
                       [](const auto &) {}},
            program.steps[i]);
    return expected;
}

ImportanceSums measured(const Program &program, bool with_output = true) {
    ImportanceSums sums;
    const DevicePtr cpu = cpu_device(2);
    ActivationRun run(program, *cpu, 64, with_output,
                      [&](std::string_view tensor, int64_t matrix, int64_t matrices,
                          std::span<const float> x) { sums.add(tensor, matrix, matrices, x); });
    CHECK(run.run(text()));
    return sums;
}

void check_sums(const Program &program) {
    const ImportanceSums sums = measured(program);
    const Expected expected = expected_of(program);
    REQUIRE(sums.entries.size() == expected.entries.size());
    for (const auto &[name, entry] : expected.entries) {
        CAPTURE(name);
        const auto found = sums.entries.find(name);
        REQUIRE(found != sums.entries.end());
        CHECK(found->second.counts == entry.counts);
        REQUIRE(found->second.sums.size() == entry.sums.size());
        double error = 0, all = 0;
        for (size_t i = 0; i < entry.sums.size(); ++i) {
            error += std::fabs(found->second.sums[i] - entry.sums[i]);
            all += entry.sums[i];
        }
        CHECK(all > 0);
        CHECK(error <= 1e-2 * all);
    }
}

}  // namespace

TEST_CASE("imatrix: the activations in front of every matrix are the reference's, in all kinds of models") {
    for (const char *arch : {"llama", "phi3", "gemma3", "olmoe", "qwen2moe", "gpt-oss", "llama4", "deepseek2",
                             "lfm2", "falcon-h1", "qwen35"}) {
        CAPTURE(arch);
        ModelShape shape;
        shape.arch = arch;
        const TemporaryModel file(shape);
        const model::Model model = model::build(file.file);
        check_sums(model.program);
    }
}

TEST_CASE("imatrix: factors of experts are applied to gate and up, and not to their biases") {
    ModelShape shape;
    shape.arch = "gpt-oss";  // its experts have biases
    const TemporaryModel file(shape);
    for (const bool up_too : {false, true}) {
        CAPTURE(up_too);
        model::Model model = model::build(file.file);
        const std::vector<float> gate_scales(64, 0.25f), up_scales(64, 3.0f);
        const auto vector = [&](const std::vector<float> &values, int64_t experts) {
            model.program.weights.push_back(
                {"scales", gguf::Type::F32, 1, experts, reinterpret_cast<const std::byte *>(values.data())});
            return static_cast<WeightId>(model.program.weights.size() - 1);
        };
        for (Step &step : model.program.steps)
            if (auto *experts = std::get_if<Experts>(&step)) {
                const int64_t count = model.program.weights[static_cast<size_t>(experts->down)].count;
                REQUIRE(count <= 64);
                REQUIRE(experts->gate_bias != kNoWeight);
                experts->gate_scales = vector(gate_scales, count);
                if (up_too) experts->up_scales = vector(up_scales, count);
            }
        check_sums(model.program);
    }
}

TEST_CASE("imatrix: a run omits the output matrix unless requested, and starts afresh each time") {
    const TemporaryModel file{ModelShape{}};
    const model::Model model = model::build(file.file);
    CHECK_FALSE(measured(model.program, false).entries.contains("output.weight"));
    ImportanceSums sums;
    const DevicePtr cpu = cpu_device(1);
    ActivationRun run(model.program, *cpu, 64, true,
                      [&](std::string_view tensor, int64_t matrix, int64_t matrices,
                          std::span<const float> x) { sums.add(tensor, matrix, matrices, x); });
    REQUIRE(run.run(text()));
    const auto once = sums.entries.at("blk.1.ffn_down.weight");
    REQUIRE(run.run(text()));
    const auto &twice = sums.entries.at("blk.1.ffn_down.weight");
    CHECK(twice.counts[0] == 2 * once.counts[0]);
    for (size_t i = 0; i < once.sums.size(); ++i)
        CHECK(twice.sums[i] == doctest::Approx(2 * once.sums[i]).epsilon(1e-12));
    const std::atomic<bool> cancel{true};
    CHECK_FALSE(run.run(text(), &cancel));
}
