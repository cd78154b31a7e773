#include "engine/model/draft_block.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/single_sequence.h"
#include "engine/model/model.h"
#include "gguf/writer.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/model_maker.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

constexpr int64_t kWidth = 32, kVocab = 260;
constexpr int32_t kTokens = 40;
constexpr const char *kArchs[] = {"glm4moe", "qwen35", "qwen35moe", "qwen3next"};

// A model in F32 of two layers and a draft block, which was made as its third. In hybrids, the first two are
// recurrent, and the interval says the same of the third.
class DraftModel {
  public:
    struct Values {
        std::vector<int64_t> shape;
        std::vector<float> all;
    };

    explicit DraftModel(const std::string &arch)
        : arch_(arch), made_(std::make_shared<const TemporaryModel>(shape_of(arch))) {
        for (const gguf::Tensor &t : made_->file.tensors()) {
            const auto *data = reinterpret_cast<const float *>(t.data);
            REQUIRE(t.type == gguf::Type::F32);
            tensors[std::string(t.name)] = {{t.shape, t.shape + t.rank}, {data, data + t.elements()}};
        }
        add("blk.2.nextn.eh_proj.weight", {2 * kWidth, kWidth}, 0, 0.2f);
        for (const char *norm : {"enorm", "hnorm", "shared_head_norm"})
            add("blk.2.nextn." + std::string(norm) + ".weight", {kWidth}, 1, 0.3f);
    }

    void add(const std::string &name, std::vector<int64_t> shape, float mean, float sigma) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        std::normal_distribution<float> normal(mean, sigma);
        Values values{std::move(shape), std::vector<float>(static_cast<size_t>(count), mean)};
        if (sigma > 0)
            for (float &x : values.all) x = normal(rng_);
        tensors[name] = std::move(values);
    }
    void fill(const std::string &name, float value) {
        const auto at = tensors.find(name);
        REQUIRE_MESSAGE(at != tensors.end(), name);
        std::ranges::fill(at->second.all, value);
    }
    // Layers that add nothing to the residual stream.
    void silence(const std::string &prefix) {
        for (auto &[name, values] : tensors)
            for (const char *output : {"attn_output.", "ssm_out.", "ffn_down"})
                if (name.starts_with(prefix) && name.find(output) != std::string::npos)
                    std::ranges::fill(values.all, 0.0f);
    }
    // eh_proj = [token * I; before * I]
    void project(float token, float before) {
        std::vector<float> &all = tensors.at("blk.2.nextn.eh_proj.weight").all;
        std::ranges::fill(all, 0.0f);
        for (size_t i = 0; i < size_t{kWidth}; ++i) {
            all[i * 2 * kWidth + i] = token;
            all[i * 2 * kWidth + kWidth + i] = before;
        }
    }
    gguf::File write(const std::string &name, uint32_t layers, uint32_t draft_layers) const {
        const std::string blocks = arch_ + ".block_count", interval = arch_ + ".full_attention_interval";
        gguf::Writer writer;
        for (const auto &[key, value] : made_->file.metadata())
            if (key != blocks && key != interval) writer.add(key, value);
        writer.add(blocks, layers);
        writer.add(arch_ + ".nextn_predict_layers", draft_layers);
        if (arch_ != "glm4moe") writer.add(interval, uint32_t{layers == 1 ? 1u : 4u});
        for (const auto &[tensor, values] : tensors) writer.add_tensor(tensor, gguf::Type::F32, values.shape);
        const auto path = made_->directory / name;
        writer.start(path);
        for (const auto &[tensor, values] : tensors) writer.write(std::as_bytes(std::span(values.all)));
        writer.finish();
        return gguf::File::open(path);
    }
    gguf::File write() const { return write("draft.gguf", 3, 1); }

    std::map<std::string, Values> tensors;

  private:
    static ModelShape shape_of(const std::string &arch) {
        ModelShape shape;
        shape.arch = arch, shape.layers = 3, shape.width = kWidth, shape.ff = 48;
        shape.vocab = kVocab, shape.threads = 1;
        // All experts: a choice between equally good ones would depend on rounding.
        if (arch != "qwen35") shape.experts.count = shape.experts.used = 2;
        return shape;
    }

    std::string arch_;
    std::shared_ptr<const TemporaryModel> made_;
    std::mt19937 rng_{7};
};

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

}  // namespace

TEST_CASE("draft block: its logits are those of one layer over the projected embeddings and hidden states") {
    using reference::rms_norm;
    using reference::to_row;
    for (const char *arch : kArchs)
        for (const bool own_matrices : {false, true}) {
            CAPTURE(arch);
            CAPTURE(own_matrices);
            // Silent layers below, so that the hidden state is the normalized embedding.
            DraftModel model(arch);
            model.silence("blk.0.");
            model.silence("blk.1.");
            if (own_matrices) {
                model.add("blk.2.nextn.embed_tokens.weight", {kWidth, kVocab}, 0, 1);
                model.add("blk.2.nextn.shared_head_head.weight", {kWidth, kVocab}, 0, 0.4f);
            } else {
                model.tensors.erase("blk.2.nextn.shared_head_norm.weight");
                model.add("output_norm.weight", {kWidth}, 1, 0.3f);
            }
            const gguf::File file = model.write();
            const double eps = double{model::read_hyper_parameters(file).norm_epsilon};
            const auto program = model::draft_block(file);
            REQUIRE(program);
            const std::vector<float> got = kernels::reference::logits_of(*program, ids());

            const auto weights = [&](const std::string &name) { return to_row(model.tensors.at(name).all); };
            const auto embedded = [&](const std::string &table, int32_t id) {
                const std::span<const float> all = model.tensors.at(table).all;
                return to_row(all.subspan(static_cast<size_t>(id) * kWidth, kWidth));
            };
            const std::string of_token =
                own_matrices ? "blk.2.nextn.embed_tokens.weight" : "token_embd.weight";
            const reference::Row project = weights("blk.2.nextn.eh_proj.weight");
            DraftModel::Values inputs{{kWidth, kVocab}, std::vector<float>(kWidth * kVocab)};
            for (int32_t p = 0; p < kTokens; ++p) {
                reference::Row both =
                    rms_norm(embedded(of_token, p), weights("blk.2.nextn.enorm.weight"), eps);
                reference::Row before(kWidth, 0.0);
                if (p > 0)
                    before =
                        rms_norm(embedded("token_embd.weight", p - 1), weights("output_norm.weight"), eps);
                before = rms_norm(before, weights("blk.2.nextn.hnorm.weight"), eps);
                both.insert(both.end(), before.begin(), before.end());
                for (size_t i = 0; i < size_t{kWidth}; ++i)
                    inputs.all[static_cast<size_t>(p) * kWidth + i] = static_cast<float>(
                        reference::dot(std::span(project).subspan(i * 2 * kWidth, 2 * kWidth), both));
            }
            std::map<std::string, DraftModel::Values> one;
            for (const auto &[name, values] : model.tensors)
                if (name.starts_with("blk.2.") && name.find("nextn") == std::string::npos)
                    one["blk.0." + name.substr(6)] = values;
            one["token_embd.weight"] = inputs;
            one["output_norm.weight"] =
                model.tensors.at(own_matrices ? "blk.2.nextn.shared_head_norm.weight" : "output_norm.weight");
            one["output.weight"] =
                model.tensors.at(own_matrices ? "blk.2.nextn.shared_head_head.weight" : "output.weight");
            model.tensors = std::move(one);
            const gguf::File single = model.write("single.gguf", 1, 0);
            const std::vector<float> expected =
                kernels::reference::logits_of(model::build(single).program, ids());
            CHECK(difference(got, expected) < 2e-3);
            CHECK(difference(row(got, 0), row(got, kTokens - 1)) > 0.5);
        }
}

TEST_CASE("draft block: hands on the hidden state of the token before, at every position") {
    for (const char *arch : kArchs) {
        CAPTURE(arch);
        // A block that repeats its hidden state: row p is the model's own row p - 1.
        DraftModel model(arch);
        model.silence("blk.2.");
        model.project(0, 1);
        model.fill("output_norm.weight", 1);
        model.fill("blk.2.nextn.hnorm.weight", 1);
        model.fill("blk.2.nextn.shared_head_norm.weight", 1);
        const gguf::File file = model.write();
        const auto block = model::draft_block(file);
        REQUIRE(block);
        const kernels::Program trunk = model::build(file).program;
        const std::vector<float> own = kernels::reference::logits_of(trunk, ids()),
                                 drafted = kernels::reference::logits_of(*block, ids());
        for (int32_t p = 1; p < kTokens; ++p) CHECK(difference(row(drafted, p), row(own, p - 1)) < 1e-2);
        for (const float x : row(drafted, 0)) CHECK(x == 0.0f);
    }
}

TEST_CASE("draft block: one that knows the model's rule predicts every token") {
    for (const char *arch : kArchs) {
        CAPTURE(arch);
        // The next token depends on the last one alone, in the model as in the block.
        DraftModel model(arch);
        for (const char *layer : {"blk.0.", "blk.1.", "blk.2."}) model.silence(layer);
        model.project(1, 0);
        model.fill("blk.2.nextn.enorm.weight", 1);
        model.tensors["blk.2.nextn.shared_head_norm.weight"] = model.tensors.at("output_norm.weight");
        const gguf::File file = model.write();
        const auto block = model::draft_block(file);
        REQUIRE(block);
        const std::vector<float> own = kernels::reference::logits_of(model::build(file).program, ids()),
                                 drafted = kernels::reference::logits_of(*block, ids());
        for (int32_t p = 0; p < kTokens; ++p) CHECK(best(row(drafted, p)) == best(row(own, p)));
    }
}

TEST_CASE("draft block: the CPU's logits have the same bits after any chunks, forks and roll-backs") {
    for (const char *arch : kArchs)
        for (uint32_t seed = 0; seed < 3; ++seed) {
            CAPTURE(arch);
            CAPTURE(seed);
            const DraftModel model(arch);
            const gguf::File file = model.write();
            const auto block = model::draft_block(file);
            REQUIRE(block);
            decode::Executor executor(kernels::cpu::make_cpu_backend(2), *block,
                                      {.context = 64, .batch = 48, .sequences = 4});
            decode::SingleSequence whole(executor);
            REQUIRE(whole.feed(ids()));
            const std::vector<float> expected(whole.logits().begin(), whole.logits().end());
            const std::vector<float> exact = kernels::reference::logits_of(*block, ids());
            CHECK(difference(expected, row(exact, kTokens - 1)) < 2e-2);

            std::mt19937 rng(seed);
            decode::Executor other(kernels::cpu::make_cpu_backend(1), *block,
                                   {.context = 64, .batch = 48, .sequences = 4});
            decode::SingleSequence parts(other);
            const std::vector<int32_t> all = ids();
            bool rolled_back = false;
            while (parts.tokens().size() < all.size()) {
                const size_t at = parts.tokens().size(), left = all.size() - at;
                const size_t count = 1 + rng() % std::min<size_t>(left, 9);
                // Rejected drafts before the true tokens.
                const std::vector<int32_t> wrong(std::min<size_t>(count, 3), 99);
                REQUIRE(parts.feed(wrong));
                parts.truncate(at);
                rolled_back = true;
                REQUIRE(parts.feed(std::span(all).subspan(at, count)));
            }
            CHECK(rolled_back);
            REQUIRE(parts.logits().size() == expected.size());
            CHECK(std::memcmp(parts.logits().data(), expected.data(), expected.size() * sizeof(float)) == 0);

            decode::SingleSequence fork(parts.sequence().fork());
            fork.truncate(all.size() - 5);
            REQUIRE(fork.feed(std::span(all).subspan(all.size() - 5)));
            REQUIRE(fork.logits().size() == expected.size());
            CHECK(std::memcmp(fork.logits().data(), expected.data(), expected.size() * sizeof(float)) == 0);
        }
}

TEST_CASE("draft block: on the (emulated) GPU its logits agree with the reference") {
    for (const char *arch : {"glm4moe", "qwen35moe"}) {
        CAPTURE(arch);
        const DraftModel model(arch);
        const gguf::File file = model.write();
        const auto block = model::draft_block(file);
        REQUIRE(block);
        for (const std::string &why : kernels::cuda::missing_kernels(*block)) REQUIRE(why == "");
        decode::Executor executor(kernels::cuda::make_cuda_backend(0), *block, {.context = 64, .batch = 16});
        decode::SingleSequence sequence(executor);
        REQUIRE(sequence.feed(ids()));
        REQUIRE(sequence.has_logits());
        const std::vector<float> exact = kernels::reference::logits_of(*block, ids());
        CHECK(difference(sequence.logits(), row(exact, kTokens - 1)) < 5e-2);
    }
}

TEST_CASE("draft block: none without its tensors, with several, or in a family without one") {
    CHECK_FALSE(model::draft_block(TemporaryModel(ModelShape{}).file));
    for (const char *arch : kArchs) {
        CAPTURE(arch);
        DraftModel model(arch);
        CHECK_FALSE(model::draft_block(model.write("two.gguf", 3, 2)));
        DraftModel broken = model;
        broken.tensors.erase("blk.2.nextn.eh_proj.weight");
        CHECK_FALSE(model::draft_block(broken.write("trunk.gguf", 3, 1)));
        broken = model;
        broken.add("blk.2.nextn.eh_proj.weight", {kWidth, kWidth}, 0, 1);
        CHECK_THROWS_WITH_AS(model::draft_block(broken.write("narrow.gguf", 3, 1)),
                             doctest::Contains("nextn.eh_proj.weight"), model::ModelError);
        broken = model;
        broken.tensors.erase("blk.2.nextn.enorm.weight");
        CHECK_THROWS_WITH_AS(model::draft_block(broken.write("missing.gguf", 3, 1)),
                             doctest::Contains("nextn.enorm.weight: missing"), model::ModelError);
    }
}
