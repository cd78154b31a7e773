// Linear attention where other programs are no measure: head counts of lightning attention that are no powers of
// two, Kimi Linear's files whose latent keys and values are one matrix, and keys that are refused.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "kernels/steps.h"
#include "tests/support/edited_model.h"
#include "tests/support/reference.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

ModelShape tiny(const std::string &arch, int64_t heads) {
    ModelShape shape;
    shape.arch = arch, shape.layers = 6, shape.width = 48, shape.ff = 40, shape.heads = heads;
    shape.kv_heads = 2, shape.head_dim = 8, shape.vocab = 260, shape.context = 64, shape.threads = 1;
    shape.experts.used = 8;  // all
    return shape;
}

// The slopes of MiniMax's own code.
std::vector<double> slopes(int heads) {
    const double log = std::log2(heads);
    if (log == std::floor(log)) {
        const double start = std::pow(2, -std::pow(2, -(log - 3)));
        std::vector<double> all;
        for (int i = 0; i < heads; ++i) all.push_back(start * std::pow(start, i));
        return all;
    }
    const int power = 1 << static_cast<int>(std::floor(log));
    std::vector<double> all = slopes(power);
    const std::vector<double> more = slopes(2 * power);
    for (size_t i = 0; all.size() < static_cast<size_t>(heads); i += 2) all.push_back(more[i]);
    return all;
}

// K^T [heads][rank][plain] and V [heads][value][rank] as one matrix: per head the rows of K, then those of V.
std::vector<float> joined(const float *k, const float *v, int64_t heads, int64_t rank, int64_t size) {
    std::vector<float> all;
    for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < size; ++i)
            for (int64_t j = 0; j < rank; ++j) all.push_back(k[(h * rank + j) * size + i]);
        all.insert(all.end(), v + h * size * rank, v + (h + 1) * size * rank);
    }
    return all;
}

}  // namespace

TEST_CASE("linear attention: lightning attention decays as in MiniMax's own code, with any number of heads") {
    for (const int heads : {4, 6, 12}) {
        CAPTURE(heads);
        const TemporaryModel file(tiny("minimax-01", heads));
        const model::Model model = model::build(file.file);
        const std::vector<double> expected = slopes(heads);
        int scans = 0;
        kernels::for_each_step<kernels::LinearScan>(model.program, [&](const kernels::LinearScan &scan) {
            const double of_layer = 1 - scan.layer / 5.0 + 1e-5;
            const auto *rates =
                reinterpret_cast<const float *>(model.program.weights[static_cast<size_t>(scan.rate)].data);
            for (int h = 0; h < heads; ++h)
                CHECK(double{rates[h]} ==
                      doctest::Approx(-expected[static_cast<size_t>(h)] * of_layer).epsilon(1e-6));
            ++scans;
        });
        CHECK(scans == 4);
    }
}

TEST_CASE("linear attention: Kimi Linear computes the same from latent keys and values in one matrix") {
    const ModelShape shape = tiny("kimi-linear", 4);
    EditedModel model(shape);
    const gguf::File &split = model.original();
    EditedModel edited(model);
    for (const int layer : {2, 5}) {
        const std::string prefix = "blk." + std::to_string(layer) + ".attn_";
        const auto numbers = [&](const char *name) {
            const gguf::Tensor *t = split.find_tensor(prefix + name);
            REQUIRE(t != nullptr);
            return reinterpret_cast<const float *>(t->data);
        };
        edited
            .values(prefix + "kv_b.weight", {shape.latent_rank, shape.heads * 2 * shape.head_dim},
                    joined(numbers("k_b.weight"), numbers("v_b.weight"), shape.heads, shape.latent_rank,
                           shape.head_dim))
            .without_tensor(prefix + "k_b.weight")
            .without_tensor(prefix + "v_b.weight");
    }
    const gguf::File joint = gguf::File::open(edited.write());
    const model::Model of_split = model::build(split), of_joint = model::build(joint);
    std::vector<int32_t> tokens(30);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 37 + i * i) % 260);
    const auto expected = tests::reference_logits(of_split.program, tokens),
               got = tests::reference_logits(of_joint.program, tokens);
    for (size_t t = 0; t < tokens.size(); ++t)
        for (size_t i = 0; i < expected[t].size(); ++i)
            REQUIRE(got[t][i] == doctest::Approx(expected[t][i]).epsilon(1e-9).scale(1));
}

TEST_CASE("linear attention: keys that ask for another computation are refused") {
    const auto refused = [](const EditedModel &model, const std::string &message) {
        const std::string error = model.error();
        CAPTURE(error);
        CHECK(error.find(message) != error.npos);
    };
    const EditedModel ling(tiny("bailingmoe3", 4)), kimi(tiny("kimi-linear", 4));
    CHECK(ling.error() == "");
    CHECK(EditedModel(ling).set("bailingmoe3.kda.safe_gate", true).error() == "");
    refused(EditedModel(ling).set("bailingmoe3.kda.safe_gate", false), "kda.safe_gate");
    refused(EditedModel(ling).set("bailingmoe3.kda.gate_lower_bound", 5.0f), "is not negative");
    refused(EditedModel(kimi).set("kimi-linear.kda.gate_lower_bound", -5.0f), "kda.gate_lower_bound");
    refused(EditedModel(tiny("minimax-01", 4)).without("minimax-01.residual_scale"), "residual_scale");
    refused(EditedModel(tiny("plamo2", 4)).set("plamo2.ssm.group_count", uint32_t{2}), "ssm.group_count");
}

TEST_CASE("linear attention: files of RWKV-7 with wrong sizes, keys and tensors are refused") {
    const auto refused = [](const EditedModel &model, const std::string &message) {
        const std::string error = model.error();
        CAPTURE(error);
        CHECK(error.find(message) != error.npos);
    };
    const EditedModel model(tiny("rwkv7", 4)), hybrid(tiny("arwkv7", 4));
    CHECK(model.error() == "");
    CHECK(EditedModel(model).set("rwkv7.token_shift_count", uint32_t{2}).error() == "");
    refused(EditedModel(model).set("rwkv7.token_shift_count", uint32_t{1}), "rwkv7.token_shift_count");
    refused(EditedModel(hybrid).set("arwkv7.token_shift_count", uint32_t{2}), "arwkv7.token_shift_count");
    refused(EditedModel(model).set("rwkv7.wkv.head_size", uint32_t{7}), "wkv.head_size: does not divide");
    refused(EditedModel(model).set("rwkv7.wkv.head_size", uint32_t{0}), "wkv.head_size");
    refused(EditedModel(model).without("rwkv7.wkv.head_size"), "wkv.head_size");
    refused(EditedModel(model).without("rwkv7.attention.decay_lora_rank"), "attention.decay_lora_rank");
    refused(EditedModel(model).set("rwkv7.attention.iclr_lora_rank", uint32_t{5}),
            "blk.0.time_mix_a1.weight");
    refused(EditedModel(model).set("rwkv7.feed_forward_length", uint32_t{0}), "feed_forward_length");
    refused(EditedModel(model).without_tensor("blk.1.time_mix_g1.weight"),
            "blk.1.time_mix_g1.weight: missing");
    refused(EditedModel(model).without_tensor("blk.0.time_mix_ln.weight"),
            "blk.0.time_mix_ln.weight: missing");
    refused(EditedModel(model).without_tensor("token_embd_norm.bias"), "token_embd_norm.bias: missing");
    refused(EditedModel(model).tensor("blk.0.time_mix_lerp_fused.weight", gguf::Type::F32, {48, 1, 1, 5}),
            "blk.0.time_mix_lerp_fused.weight: its shape");
    refused(EditedModel(model).tensor("blk.2.attn_q.weight", gguf::Type::F32, {48, 48}),
            "has no such weight");
    // The values of the first layer are those that later layers mix in: it needs no tensors for that.
    CHECK(EditedModel(model)
              .without_tensor("blk.0.time_mix_v0.weight")
              .without_tensor("blk.0.time_mix_v1.weight")
              .without_tensor("blk.0.time_mix_v2.weight")
              .error() == "");
    refused(EditedModel(model).without_tensor("blk.1.time_mix_v0.weight"),
            "blk.1.time_mix_v0.weight: missing");
}

TEST_CASE("linear attention: files of RWKV-6 with wrong sizes, keys and tensors are refused") {
    const auto refused = [](const EditedModel &model, const std::string &message) {
        const std::string error = model.error();
        CAPTURE(error);
        CHECK(error.find(message) != error.npos);
    };
    const EditedModel model(tiny("rwkv6", 4)), hybrid(tiny("rwkv6qwen2", 4));
    CHECK(model.error() == "");
    CHECK(hybrid.error() == "");
    CHECK(EditedModel(model).without("rwkv6.rescale_every_n_layers").error() == "");
    refused(EditedModel(model).set("rwkv6.rescale_every_n_layers", -1), "rescale_every_n_layers");
    refused(EditedModel(hybrid).set("rwkv6qwen2.rescale_every_n_layers", uint32_t{2}),
            "rescale_every_n_layers");
    refused(EditedModel(hybrid).set("rwkv6qwen2.attention.head_count_kv", uint32_t{4}), "does not divide");
    refused(EditedModel(hybrid).set("rwkv6qwen2.token_shift_count", uint32_t{2}), "token_shift_count");
    refused(EditedModel(model).without("rwkv6.time_mix_extra_dim"), "time_mix_extra_dim");
    refused(EditedModel(model).set("rwkv6.time_decay_extra_dim", uint32_t{3}),
            "blk.0.time_mix_decay_w1.weight");
    refused(EditedModel(model).without_tensor("blk.1.time_mix_first.weight"),
            "blk.1.time_mix_first.weight: missing");
    refused(EditedModel(model).without_tensor("blk.1.time_mix_lerp_fused.weight"),
            "blk.1.time_mix_lerp_w.weight: missing");
}

// The converter of PLaMo 2 writes 0 heads for the layers without attention.
TEST_CASE("linear attention: PLaMo 2's numbers of heads may be given by layer") {
    const std::vector<int32_t> heads = {0, 0, 4, 0, 0, 4};
    const EditedModel model(tiny("plamo2", 4));
    CHECK(model.error() == "");
    CHECK(EditedModel(model)
              .set("plamo2.attention.head_count", gguf::Array(std::span<const int32_t>(heads)))
              .error() == "");
}
