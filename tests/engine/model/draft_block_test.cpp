#include "engine/model/draft_block.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/model.h"
#include "gguf/writer.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/draft_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

constexpr int64_t kWidth = kDraftWidth, kVocab = kDraftVocab;
constexpr int32_t kTokens = 40;

std::vector<int32_t> ids() {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(i);
    return tokens;
}

std::span<const float> row(const std::vector<float> &logits, int32_t token) {
    return std::span(logits).subspan(static_cast<size_t>(token) * kVocab, kVocab);
}

double difference(std::span<const float> a, std::span<const float> b) {
    REQUIRE(a.size() == b.size());
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
    return most;
}

int64_t best(std::span<const float> logits) {
    return std::ranges::max_element(logits) - logits.begin();
}

// Any values, as the hidden states before the tokens of ids(): [kTokens][kWidth].
std::vector<float> some_states() {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<float> states(kTokens * kWidth);
    for (float &x : states) x = normal(rng);
    return states;
}

struct Results {
    std::vector<float> logits, states;
};

// The block's logits and states for ids() after these hidden states.
Results results_of(kernels::Backend &backend, const kernels::Program &block, std::span<const float> states) {
    backend.load(block, {.blocks = {2}, .context = 2 * kernels::kBlockTokens}, kTokens);
    const kernels::Program::Part &part = block.parts.at(0);
    const kernels::SlotRows rows = backend.exchange(part.in.at(0));
    for (int64_t t = 0; t < kTokens; ++t)
        std::copy_n(states.data() + t * kWidth, kWidth, rows.data + t * rows.stride);
    const kernels::BlockId table[] = {0, 1};
    const kernels::SequenceSpan span{0, kTokens, 0, {table}};
    Results results{std::vector<float>(kTokens * kVocab), std::vector<float>(kTokens * kWidth)};
    const std::vector<int32_t> all = ids();
    REQUIRE(backend.execute({all, all, {&span, 1}, all}, results.logits));
    const kernels::SlotRows out = backend.exchange(part.out.at(0));
    for (int64_t t = 0; t < kTokens; ++t)
        std::copy_n(out.data + t * out.stride, kWidth, results.states.data() + t * kWidth);
    return results;
}
std::vector<float> logits_of(const kernels::Program &block, std::span<const float> states) {
    return results_of(*kernels::cpu::make_cpu_backend(1), block, states).logits;
}

bool is(const char *arch, const char *other) {
    return std::string(arch) == other;
}

// The logits of the block's layer as a model of its own, whose embeddings are `inputs`, with the block's last norm and
// output matrix.
std::vector<float> logits_of_layer(const char *arch, DraftModel model, const DraftModel::Values &inputs,
                                   const std::string &norm, const std::string &output) {
    std::map<std::string, DraftModel::Values> one = model.layer("blk.2.", "blk.0.");
    std::erase_if(one, [&](const auto &tensor) {
        return tensor.first.find("nextn") != std::string::npos ||
               tensor.first.find(model.last_norm()) != std::string::npos;
    });
    one["token_embd.weight"] = inputs;
    one["output_norm.weight"] = model.tensors.at(norm);
    one["output.weight"] = model.tensors.at(output);
    uint32_t layers = 1;
    model.keys.assign(model.keys.empty() ? 0 : 1, {.window = true, .hidden = kDraftHidden});
    if (is(arch, "nemotron_h_moe")) {  // its layers have one half
        layers = 2;
        model.keys = {{}, {.kv_heads = 0, .hidden = kDraftHidden}};
        std::map<std::string, DraftModel::Values> halves;
        for (const auto &[name, values] : one) {
            const bool second =
                name.find("ffn_") != std::string::npos || name.find("exp_") != std::string::npos;
            halves[second ? "blk.1." + name.substr(6) : name] = values;
        }
        const auto of_second = halves.extract("blk.0.post_attention_norm.weight");
        halves["blk.1.attn_norm.weight"] = of_second.mapped();
        one = std::move(halves);
    }
    model.tensors = std::move(one);
    const gguf::File file = model.write("single.gguf", layers, 0);
    kernels::Program program = model::build(file).program;
    if (is(arch, "cohere2moe"))  // draft layers are rotated, full layers are not
        for (kernels::Step &step : program.steps)
            if (auto *attention = std::get_if<kernels::Attention>(&step)) attention->rope = 0;
    if (is(arch, "nemotron_h_moe"))
        std::get<kernels::Norm>(program.steps.at(program.steps.size() - 2)).kind = kernels::Norm::Kind::Layer;
    return kernels::reference::logits_of(program, ids());
}

}  // namespace

TEST_CASE("draft block: its logits are those of one layer over the projected embeddings and hidden states") {
    using reference::to_row;
    for (const char *arch : kDraftArchs)
        for (const bool own_matrices : {false, true}) {
            CAPTURE(arch);
            CAPTURE(own_matrices);
            DraftModel model(arch);
            const std::vector<float> states = some_states();
            const bool tied = !model.tensors.contains("output.weight");
            std::string table = "token_embd.weight", output = tied ? table : "output.weight",
                        last = "blk.2." + model.last_norm() + ".weight";
            if (own_matrices) {
                model.add(table = "blk.2.nextn.embed_tokens.weight", {kWidth, kVocab}, 0, 1);
                model.add(output = "blk.2.nextn.shared_head_head.weight", {kWidth, kVocab}, 0, 0.4f);
            } else if (!is(arch, "nemotron_h_moe")) {
                model.tensors.erase(last);
                model.add(last = "output_norm.weight", {kWidth}, 1, 0.3f);
            }
            const gguf::File file = model.write();
            const double eps = double{model::read_hyper_parameters(file).norm_epsilon};
            const std::vector<kernels::Program> programs = model::draft_blocks(file);
            REQUIRE(programs.size() == 1);
            const std::vector<float> got = logits_of(programs[0], states);

            const auto weights = [&](const std::string &name) { return to_row(model.tensors.at(name).all); };
            const auto normed = [&](const reference::Row &row, const std::string &name) {
                return is(arch, "cohere2moe") ? reference::layer_norm(row, weights(name), eps)
                                              : reference::rms_norm(row, weights(name), eps);
            };
            const reference::Row project = weights("blk.2.nextn.eh_proj.weight");
            DraftModel::Values inputs{{kWidth, kVocab}, std::vector<float>(kWidth * kVocab)};
            const auto row_of = [](std::span<const float> all, int32_t index) {
                return to_row(all.subspan(static_cast<size_t>(index) * kWidth, kWidth));
            };
            for (int32_t p = 0; p < kTokens; ++p) {
                reference::Row both =
                    normed(row_of(model.tensors.at(table).all, p), "blk.2.nextn.enorm.weight");
                const reference::Row before = normed(row_of(states, p), "blk.2.nextn.hnorm.weight");
                both.insert(both.end(), before.begin(), before.end());
                for (size_t i = 0; i < size_t{kWidth}; ++i)
                    inputs.all[static_cast<size_t>(p) * kWidth + i] = static_cast<float>(
                        reference::dot(std::span(project).subspan(i * 2 * kWidth, 2 * kWidth), both));
            }
            const std::vector<float> expected = logits_of_layer(arch, model, inputs, last, output);
            CHECK(difference(got, expected) < 2e-2);
            CHECK(difference(row(got, 0), row(got, kTokens - 1)) > 0.5);
        }
}

TEST_CASE("draft block: each of several is that of a file that holds it alone") {
    for (const char *arch : kDraftArchs) {
        CAPTURE(arch);
        DraftModel model(arch);
        model.chain(3);
        const gguf::File file = model.write("three.gguf", 5, 3);
        const std::vector<kernels::Program> programs = model::draft_blocks(file);
        REQUIRE(programs.size() == 3);
        const std::vector<float> states = some_states();
        for (size_t i = 0; i < 3; ++i) {
            CAPTURE(i);
            DraftModel alone = model;
            for (auto &[name, values] : model.layer("blk." + std::to_string(2 + i) + ".", "blk.2."))
                alone.tensors[name] = values;
            const gguf::File one = alone.write("block " + std::to_string(i) + ".gguf", 3, 1);
            const Results got = results_of(*kernels::cpu::make_cpu_backend(1), programs[i], states),
                          expected = results_of(*kernels::cpu::make_cpu_backend(1),
                                                model::draft_blocks(one).at(0), states);
            CHECK(got.logits == expected.logits);
            CHECK(got.states == expected.states);
        }
    }
}

TEST_CASE("draft block: one that knows the model's rule predicts every token") {
    for (const char *arch : kDraftArchs) {
        CAPTURE(arch);
        DraftModel model(arch);
        model.obey_rule();
        const gguf::File file = model.write();
        const kernels::Program block = model::draft_blocks(file).at(0);
        const std::vector<float> own = kernels::reference::logits_of(model::build(file).program, ids()),
                                 drafted = logits_of(block, some_states());
        for (int32_t p = 0; p < kTokens; ++p) CHECK(best(row(drafted, p)) == best(row(own, p)));
    }
}

TEST_CASE("draft block: on the (emulated) GPU its logits agree with the CPU's") {
    for (const char *arch : {"glm4moe", "qwen35moe", "nemotron_h_moe", "cohere2moe"}) {
        CAPTURE(arch);
        DraftModel model(arch);
        model.chain(2);
        const gguf::File file = model.write();
        for (const kernels::Program &block : model::draft_blocks(file)) {
            for (const std::string &why : kernels::cuda::missing_kernels(block)) REQUIRE(why == "");
            const Results exact = results_of(*kernels::cpu::make_cpu_backend(1), block, some_states()),
                          got = results_of(*kernels::cuda::make_cuda_backend(0), block, some_states());
            CHECK(difference(got.logits, exact.logits) < 5e-2);
            CHECK(difference(got.states, exact.states) < 5e-2);
        }
    }
}

TEST_CASE("draft block: none without its tensors, or in a family without one") {
    CHECK(model::draft_blocks(TemporaryModel(ModelShape{}).file).empty());
    for (const char *arch : kDraftArchs) {
        CAPTURE(arch);
        DraftModel model(arch);
        model.keys.resize(model.keys.empty() ? 0 : 4,
                          model.keys.empty() ? DraftModel::LayerKeys{} : model.keys.back());
        CHECK(model::draft_blocks(model.write("second missing.gguf", 4, 2)).size() == 1);
        DraftModel broken = model;
        broken.tensors.erase("blk.2.nextn.eh_proj.weight");
        CHECK(model::draft_blocks(broken.write("trunk.gguf", 3, 1)).empty());
        broken = model;
        broken.add("blk.2.nextn.eh_proj.weight", {kWidth, kWidth}, 0, 1);
        CHECK_THROWS_WITH_AS(model::draft_blocks(broken.write("narrow.gguf", 3, 1)),
                             doctest::Contains("nextn.eh_proj.weight"), model::ModelError);
        broken = model;
        broken.tensors.erase("blk.2.nextn.enorm.weight");
        CHECK_THROWS_WITH_AS(model::draft_blocks(broken.write("missing.gguf", 3, 1)),
                             doctest::Contains("nextn.enorm.weight: missing"), model::ModelError);
    }
}

TEST_CASE("draft block: its last norm may have the name layer_output_norm") {
    DraftModel model("mimo2");
    int written = 0;
    const auto logits = [&] {
        const gguf::File file = model.write(std::to_string(++written) + ".gguf", 3, 1);
        return logits_of(model::draft_blocks(file).at(0), some_states());
    };
    const std::vector<float> expected = logits();
    auto norm = model.tensors.extract("blk.2.nextn.shared_head_norm.weight");
    norm.key() = "blk.2.layer_output_norm.weight";
    model.tensors.insert(std::move(norm));
    CHECK(logits() == expected);
    model.tensors.erase("blk.2.layer_output_norm.weight");  // now the model's
    CHECK(logits() != expected);
}

TEST_CASE("draft block: the converter of cohere2moe writes the windows of the model's layers only") {
    const DraftModel model("cohere2moe");
    const gguf::File file = model.write();
    gguf::Array windows(gguf::ValueType::Bool);
    for (const bool windowed : {false, true}) windows.push(windowed);
    gguf::Writer writer;
    for (const auto &[key, value] : file.metadata()) writer.add(key, value);
    writer.add("cohere2moe.attention.sliding_window_pattern", windows);
    for (const auto &[name, values] : model.tensors) writer.add_tensor(name, gguf::Type::F32, values.shape);
    const TemporaryDirectory directory;
    writer.start(directory / "windows.gguf");
    for (const auto &[name, values] : model.tensors) writer.write(std::as_bytes(std::span(values.all)));
    writer.finish();
    const gguf::File with = gguf::File::open(directory / "windows.gguf");
    CHECK(kernels::reference::logits_of(model::build(with).program, ids()) ==
          kernels::reference::logits_of(model::build(file).program, ids()));
    CHECK(logits_of(model::draft_blocks(with).at(0), some_states()) ==
          logits_of(model::draft_blocks(file).at(0), some_states()));
}
