// The metadata of a file and the result of build(): every contradiction is rejected with the name of the key,
// before anything is computed.
#include "engine/model/model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/notes.h"
#include "engine/model/other_architectures.h"
#include "tests/support/edited_model.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

void check_refused(const EditedModel &model, const std::string &why) {
    const std::string error = model.error();
    CAPTURE(error);
    CAPTURE(why);
    CHECK(error.find(why) != std::string::npos);
    CHECK(error.size() < 700);
    CHECK(std::all_of(error.begin(), error.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("model: an edited copy that changes nothing builds") {
    CHECK(EditedModel().error().empty());
    ModelShape tied;
    tied.tied = true;
    tied.type = "Q4_0";
    CHECK(EditedModel(tied).error().empty());
}

TEST_CASE("model: impossible sizes are refused by key") {
    for (const char *key : {"context_length", "embedding_length", "block_count", "feed_forward_length",
                            "attention.head_count", "attention.head_count_kv"}) {
        const std::string full = std::string("llama.") + key;
        check_refused(EditedModel().set(full, 0u), full);
        check_refused(EditedModel().set(full, UINT32_MAX), full);
        check_refused(EditedModel().set(full, INT64_MIN), full);
        check_refused(EditedModel().set(full, 2.0f), full + ": not an integer");
    }
    check_refused(EditedModel().set("llama.attention.key_length", 1u << 30), "key_length");
    check_refused(EditedModel().set("llama.attention.head_count_kv", 3u), "does not divide");
    check_refused(EditedModel().set("llama.rope.dimension_count", 1000u), "rope.dimension_count");
    ModelShape phi3;
    phi3.arch = "phi3";
    check_refused(EditedModel(phi3).set("phi3.rope.dimension_count", 15u), "rope.dimension_count: 15 is odd");
    check_refused(EditedModel(phi3).set("phi3.rope.dimension_count", 0u), "nothing would be rotated");
    check_refused(EditedModel(phi3).set("phi3.attention.sliding_window", -1), "sliding_window");
    check_refused(EditedModel().set("llama.block_count", 4096u), "blk.2.");
    check_refused(EditedModel().without("llama.block_count"), "llama.block_count: missing");
}

TEST_CASE("model: an epsilon, a scale or a rotation that would compute NaN is refused") {
    const std::string eps = "llama.attention.layer_norm_rms_epsilon", scale = "llama.attention.scale";
    for (const float bad : {kNan, kInf, -1e-5f, 2.0f}) check_refused(EditedModel().set(eps, bad), eps);
    for (const float bad : {kNan, -kInf, -1.0f}) check_refused(EditedModel().set(scale, bad), scale);
    check_refused(EditedModel().set(scale, 1e300), scale);  // finite, but too large for a float
    CHECK(EditedModel().set(eps, 0.0f).error().empty());
    for (const float bad : {kNan, 1.0f, 0.0f, -10.0f})
        check_refused(EditedModel().set("llama.rope.freq_base", bad), "rope.freq_base");
    check_refused(EditedModel().set("llama.rope.scaling.factor", -2.0f), "rope.scaling.factor");
    check_refused(EditedModel().set("llama.rope.scaling.factor", 1e-310), "not finite");
    check_refused(EditedModel()
                      .set("llama.rope.scaling.type", "yarn")
                      .set("llama.rope.scaling.factor", 1e10f)
                      .set("llama.rope.scaling.attn_factor", 3e38f),
                  "not finite");
    for (const float bad : {kNan, kInf, 0.0f, -1.0f})
        check_refused(EditedModel().tensor("rope_freqs.weight", gguf::Type::F32, {8}, bad), "rope_freqs");
    check_refused(EditedModel().tensor("rope_freqs.weight", gguf::Type::F32, {9}, 1), "rope_freqs");
}

TEST_CASE("model: tensors that are missing, of another shape or of a wrong type are refused by name") {
    using gguf::Type;
    check_refused(EditedModel().without_tensor("token_embd.weight"), "token_embd.weight: missing");
    check_refused(EditedModel().without_tensor("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight: missing");
    check_refused(EditedModel().tensor("token_embd.weight", Type::F32, {64}),
                  "expected 64 (embedding_length) x 1");
    check_refused(EditedModel().tensor("token_embd.weight", Type::I32, {64, 320}), "i32");
    check_refused(EditedModel().tensor("token_embd.weight", Type::Q8_K, {256, 320}), "token_embd.weight");
    check_refused(EditedModel().tensor("output.weight", Type::F32, {64, 319}), "output.weight");
    check_refused(EditedModel().tensor("blk.0.attn_norm.weight", Type::F16, {64}), "f32 is expected");
    check_refused(EditedModel().tensor("blk.0.attn_q.bias", Type::F16, {64}), "blk.0.attn_q.bias");
    check_refused(EditedModel().tensor("blk.0.attn_q.bias", Type::F32, {63}), "blk.0.attn_q.bias");
    check_refused(EditedModel().tensor("blk.0.attn_q.weight", Type::F32, {64, 32, 2}), "attn_q.weight");
    check_refused(EditedModel().tensor("blk.0.ffn_down.weight", Type::IQ2_S, {256, 64}), "ffn_down");
    ModelShape qwen2;
    qwen2.arch = "qwen2";
    check_refused(EditedModel(qwen2).without_tensor("blk.0.attn_k.bias"), "blk.0.attn_k.bias: missing");
    ModelShape qwen3;
    qwen3.arch = "qwen3";
    check_refused(EditedModel(qwen3).without_tensor("blk.0.attn_q_norm.weight"), "attn_q_norm");
}

TEST_CASE("model: weights that the metadata does not account for are refused by name") {
    check_refused(EditedModel().set("llama.block_count", 1u),
                  "llama.block_count: 1, but there is a tensor blk.1.");
    check_refused(EditedModel().tensor("blk.0.attn_q_norm.weight", gguf::Type::F32, {16}, 1),
                  "blk.0.attn_q_norm.weight: the architecture llama has no such weight");
    CHECK(EditedModel().tensor("blk.0.attn_rot_embd", gguf::Type::F32, {8}, 1).error().empty());
    ModelShape phi3;
    phi3.arch = "phi3";
    check_refused(EditedModel(phi3).tensor("blk.0.attn_qkv.weight", gguf::Type::F32, {64, 64}),
                  "attention.head_count * key_length");
}

TEST_CASE("model: matrices with a factor of their own are multiplied by it") {
    const auto parts_of = [](const EditedModel &edited, kernels::Program &program) {
        CHECK(edited.built(program).empty());
        std::map<std::string, kernels::Linear::Part> parts;
        for (const kernels::Step &step : program.steps)
            if (const auto *linear = std::get_if<kernels::Linear>(&step))
                for (const kernels::Linear::Part &part : linear->parts)
                    parts.emplace(program.weights[static_cast<size_t>(part.weight)].name, part);
        return parts;
    };
    const std::vector<int64_t> one = {1};
    ModelShape qwen2;  // has biases
    qwen2.arch = "qwen2";
    EditedModel edited(qwen2);
    edited.tensor("blk.0.attn_q.scale", gguf::Type::F32, one, 0.25f)
        .tensor("blk.0.ffn_down.scale", gguf::Type::F32, one, 3)
        .tensor("blk.0.ffn_down.input_scale", gguf::Type::F32, one, 7)
        .tensor("blk.0.attn_q.bias", gguf::Type::F32, {64}, 0.5f)
        .tensor("output.scale", gguf::Type::F32, one, 0.5f);
    kernels::Program program;
    const auto parts = parts_of(edited, program);
    const kernels::Linear::Part &q = parts.at("blk.0.attn_q.weight");
    CHECK(q.scale == 0.25f);
    const kernels::Weight &bias = program.weights[static_cast<size_t>(q.bias)];
    CHECK(bias.cols == 64);
    for (int64_t i = 0; i < bias.cols; ++i) CHECK(reinterpret_cast<const float *>(bias.data)[i] == 2);
    CHECK(parts.at("blk.0.ffn_down.weight").scale == 3);
    CHECK(parts.at("blk.1.ffn_down.weight").scale == 1);
    CHECK(std::get<kernels::Logits>(program.steps.back()).scale == 0.5f);

    check_refused(EditedModel().tensor("blk.0.ffn_up.scale", gguf::Type::F32, one, kNan),
                  "blk.0.ffn_up.scale: is not a positive number");
    check_refused(EditedModel().tensor("blk.0.ffn_up.scale", gguf::Type::F32, {3}, 1),
                  "blk.0.ffn_up.scale: a factor must be a single number");
    check_refused(EditedModel().tensor("output.scale", gguf::Type::F32, {3}, 1),
                  "output.scale: a factor must be a single number");
    check_refused(EditedModel().tensor("blk.0.ffn_up.scale", gguf::Type::F16, one),
                  "blk.0.ffn_up.scale: its type is f16, f32 is expected");
    check_refused(EditedModel().tensor("blk.0.attn_q.scale", gguf::Type::F32, {4}, 1),
                  "blk.0.attn_q.scale: a factor must be a single number");
}

TEST_CASE("model: experts have factors of their own for gate, up and down") {
    constexpr int64_t experts = 4;
    ModelShape shape;
    shape.arch = "qwen3moe", shape.experts.count = experts;
    struct Built {
        gguf::File file;  // the weights are in its mapping
        kernels::Program program;
        std::vector<kernels::Experts> all;
        explicit Built(const EditedModel &edited)
            : file(gguf::File::open(edited.write())), program(model::build(file).program) {
            for (const kernels::Step &step : program.steps)
                if (const auto *found = std::get_if<kernels::Experts>(&step)) all.push_back(*found);
            REQUIRE(!all.empty());
        }
        float first(kernels::WeightId id) const {
            REQUIRE(id != kernels::kNoWeight);
            return *reinterpret_cast<const float *>(program.weights[static_cast<size_t>(id)].data);
        }
    };
    const auto factor = [&](EditedModel &edited, const std::string &name, int64_t count, float value) {
        edited.tensor(name + ".scale", gguf::Type::F32, {count}, value);
    };
    EditedModel three(shape);
    factor(three, "blk.0.ffn_gate_exps", experts, 0.25f);
    factor(three, "blk.0.ffn_up_exps", experts, 3);
    factor(three, "blk.0.ffn_down_exps", experts, 5);
    const Built of_three(three);
    CHECK(of_three.first(of_three.all[0].gate_scales) == 0.25f);
    CHECK(of_three.first(of_three.all[0].up_scales) == 3);
    CHECK(of_three.first(of_three.all[0].routing.expert_scales) == 5);
    CHECK(of_three.all[1].gate_scales == kernels::kNoWeight);

    ModelShape shared;  // a shared expert with a gate is a mixture of one
    shared.arch = "qwen2moe";
    EditedModel one(shared);
    factor(one, "blk.0.ffn_gate_shexp", 1, 0.5f);
    factor(one, "blk.0.ffn_up_shexp", 1, 7);
    factor(one, "blk.0.ffn_down_shexp", 1, 9);
    const Built of_one(one);
    CHECK(of_one.first(of_one.all[1].gate_scales) == 0.5f);
    CHECK(of_one.first(of_one.all[1].up_scales) == 7);
    CHECK(of_one.first(of_one.all[1].routing.expert_scales) == 9);

    // Llama 4 multiplies the input by the weight of an expert: the factor of down joins that of up.
    ModelShape llama4;
    llama4.arch = "llama4", llama4.experts.count = experts;
    EditedModel on_input(llama4);
    factor(on_input, "blk.1.ffn_down_exps", experts, 5);
    const Built of_down(on_input);
    CHECK(of_down.all[0].routing.expert_scales == kernels::kNoWeight);
    CHECK(of_down.first(of_down.all[0].up_scales) == 5);
    factor(on_input, "blk.1.ffn_up_exps", experts, 3);
    const Built of_both(on_input);
    CHECK(of_both.first(of_both.all[0].up_scales) == 15);

    check_refused(EditedModel(shape).tensor("blk.0.ffn_up_exps.scale", gguf::Type::F32, {experts}, kNan),
                  "blk.0.ffn_up_exps.scale: holds a factor that is not a positive number");
    check_refused(EditedModel(shape).tensor("blk.0.ffn_gate_exps.scale", gguf::Type::F32, {experts + 1}, 1),
                  "blk.0.ffn_gate_exps.scale");
    check_refused(EditedModel(shape).tensor("blk.0.ffn_gate_exps.scale", gguf::Type::F16, {experts}),
                  "blk.0.ffn_gate_exps.scale");
}

TEST_CASE("model: an unsupported architecture is refused with its kind and the missing feature") {
    check_refused(EditedModel().set("general.architecture", "hrm_text"),
                  "\"hrm_text\" is not supported: it needs cycles over stacks of layers (runnel inspect "
                  "--supported lists all that are)");
    check_refused(EditedModel().set("general.architecture", "bert"), "generates no text");
    check_refused(EditedModel().set("general.architecture", "llama17"), "\"llama17\" is not known");
    const auto supported = model::supported_architectures();
    for (const model::OtherArchitecture &other : model::other_architectures()) {
        CAPTURE(other.name);
        CHECK(std::ranges::find(supported, other.name) == supported.end());
    }
    // llama.cpp of October 2026 has 153 architectures; each is in one of the two tables.
    CHECK(supported.size() + model::other_architectures().size() >= 153);
}

TEST_CASE("model: a key that changes the computation is refused if the family does not read it") {
    const auto edited = [](const char *key, auto value) { return EditedModel().set(key, value); };
    check_refused(edited("llama.attention.clamp_kqv", 8.0f),
                  "llama.attention.clamp_kqv: changes what the model computes");
    check_refused(edited("llama.attention.max_alibi_bias", 8.0f), "llama.attention.max_alibi_bias");
    check_refused(edited("llama.attention.causal", false), "llama.attention.causal");
    check_refused(edited("llama.attention.indexer.top_k", 2048u), "llama.attention.indexer.top_k");
    check_refused(edited("llama.logit_scale", 0.5f), "llama.logit_scale");
    check_refused(edited("prism.scale", 1u), "prism.scale: unknown; it may change what the weights mean");
    check_refused(edited("prism.hadamard.version", 1u), "prism.hadamard.transform: missing");
    gguf::Array sections(gguf::ValueType::I32);
    for (const int32_t pairs : {4, 2, 2, 0}) sections.push(pairs);
    check_refused(edited("llama.rope.dimension_sections", sections), "llama.rope.dimension_sections");
    // Neutral values.
    CHECK(edited("llama.attention.clamp_kqv", 0.0f).error() == "");
    CHECK(edited("llama.attention.causal", true).error() == "");
    CHECK(edited("llama.logit_scale", 1.0f).error() == "");
    CHECK(edited("llama.rope.freq_base_swa", 10000.0f).error() == "");
}

TEST_CASE("model: an unknown key gives a note, one that does not affect text gives none") {
    const auto notes = [](const char *key, auto value) {
        const EditedModel model = EditedModel().set(key, value);
        const gguf::File file = gguf::File::open(model.write());
        std::vector<std::string> lines;
        model::build(file, 0, lines);
        return lines;
    };
    CHECK(notes("llama.vision.block_count", 3u).empty());
    CHECK(notes("llama.pooling_type", 1u).empty());
    CHECK(notes("llama.expert_weights_scale", 2.0f).empty());  // there are no experts
    const auto unknown = notes("llama.attention.moonlight", 3u);
    REQUIRE(unknown.size() == 1);
    CHECK(unknown.front().starts_with("llama.attention.moonlight: unknown to this version"));
    CHECK(notes("llama.attention.sliding_window", 32u).size() == 1);
    CHECK(notes("llama.attention.sliding_window", 100000u).empty());
}

TEST_CASE("model: glm4 with position axes rotates halves") {
    const auto pairs = [](const char *family) {
        ModelShape shape;
        shape.arch = family;
        const TemporaryModel file(shape);
        return model::build(file.file).program.ropes.front().pairs;
    };
    CHECK(pairs("glm4") == kernels::RopeTable::Pairs::Adjacent);
    CHECK(pairs("glm4-axes") == kernels::RopeTable::Pairs::Halves);
}

TEST_CASE("model: baichuan has ALiBi with 40 layers, and RoPE otherwise") {
    const auto attention = [](int64_t layers) {
        ModelShape shape;
        shape.arch = "baichuan", shape.layers = layers;
        const TemporaryModel file(shape);
        for (const kernels::Step &step : model::build(file.file).program.steps)
            if (const auto *found = std::get_if<kernels::Attention>(&step)) return *found;
        return kernels::Attention{};
    };
    CHECK(attention(40).slopes != kernels::kNoWeight);
    CHECK(attention(40).rope == -1);
    CHECK(attention(3).slopes == kernels::kNoWeight);
    CHECK(attention(3).rope == 0);
}

TEST_CASE(
    "model: ALiBi's slopes fall from head to head, also for a number of heads that is no power of two") {
    ModelShape shape;
    shape.arch = "refact", shape.heads = 6, shape.kv_heads = 1, shape.width = 48;
    const TemporaryModel file(shape);
    const model::Model model = model::build(file.file);
    for (const kernels::Step &step : model.program.steps)
        if (const auto *found = std::get_if<kernels::Attention>(&step)) {
            const kernels::Weight &weight = model.program.weights[static_cast<size_t>(found->slopes)];
            const auto *slopes = reinterpret_cast<const float *>(weight.data);
            // Four heads have 2^-2, 2^-4 ...; the others take the first two that only eight heads have.
            const float expected[] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-1f, 0x1p-3f};
            CHECK(std::equal(expected, expected + 6, slopes));
        }
}

TEST_CASE("model: nanbeige repeats its layers, each time with other keys and values") {
    ModelShape shape;
    shape.arch = "nanbeige", shape.layers = 2;
    const TemporaryModel file(shape);
    CHECK(model::build(file.file).program.cache_layers.size() == 6);
    for (const uint32_t loops : {0u, 513u})
        check_refused(EditedModel(shape).set("nanbeige.num_loops", loops), "nanbeige.num_loops");
}

TEST_CASE("model: hunyuan_vl multiplies RoPE's base by a power of alpha") {
    ModelShape shape;
    shape.arch = "hunyuan_vl";
    const auto frequencies = [&](float alpha) {
        kernels::Program program;
        CHECK(EditedModel(shape).set("hunyuan_vl.rope.scaling.alpha", alpha).built(program) == "");
        return program.ropes.front().inv_freq;
    };
    const auto plain = frequencies(1), scaled = frequencies(100);
    // Heads of 16: base * 100^(16 / 14), so pair j turns 100^(-2 j / 14) times as fast.
    REQUIRE(plain.size() == 8);
    for (size_t j = 0; j < 8; ++j)
        CHECK(scaled[j] / plain[j] == doctest::Approx(std::pow(100.0, -2.0 * static_cast<double>(j) / 14)));
}

TEST_CASE("model: apertus needs xIELU's four numbers, one for all layers or one for each") {
    ModelShape shape;
    shape.arch = "apertus", shape.layers = 3;
    const auto numbers = [](std::initializer_list<float> values) {
        gguf::Array array(gguf::ValueType::F32);
        for (const float value : values) array.push(value);
        return array;
    };
    check_refused(EditedModel(shape).without("xielu.beta"), "xielu.beta: missing");
    check_refused(EditedModel(shape).set("xielu.eps", numbers({0, 0})),
                  "xielu.eps: does not have one number");
    check_refused(EditedModel(shape).set("xielu.alpha_n", numbers({0, INFINITY, 0})), "xielu.alpha_n");
    kernels::Program program;
    CHECK(EditedModel(shape).set("xielu.beta", 0.25f).set("xielu.alpha_n", 0.0f).built(program) == "");
    for (const kernels::Step &step : program.steps)
        if (const auto *activation = std::get_if<kernels::Activation>(&step)) {
            CHECK(activation->parameters.beta == 0.25f);
            CHECK(activation->parameters.negative == doctest::Approx(0.25 + std::log(2.0)));  // softplus(0)
        }
}

TEST_CASE("model: smallthinker has either windows of 4096 and full layers without RoPE, or neither") {
    ModelShape shape;
    shape.arch = "smallthinker", shape.layers = 5, shape.context = 8192;
    const auto attention = [](const EditedModel &model) {
        kernels::Program program;
        CHECK(model.built(program) == "");
        std::vector<std::pair<int32_t, bool>> layers;  // window, whether it rotates
        for (const kernels::Step &step : program.steps)
            if (const auto *a = std::get_if<kernels::Attention>(&step))
                layers.emplace_back(a->window, a->rope >= 0);
        return layers;
    };
    using Layers = std::vector<std::pair<int32_t, bool>>;
    CHECK(attention(EditedModel(shape)) ==
          Layers{{0, false}, {4096, true}, {4096, true}, {4096, true}, {0, false}});
    CHECK(attention(EditedModel(shape).without("smallthinker.attention.sliding_window")) ==
          Layers{{0, true}, {0, true}, {0, true}, {0, true}, {0, true}});
}

TEST_CASE("model: bailingmoe without key_length has heads of rope.dimension_count") {
    ModelShape shape;
    shape.arch = "bailingmoe", shape.head_dim = 32;  // width / heads: 16
    kernels::Program program;
    const EditedModel model = EditedModel(shape)
                                  .without("bailingmoe.attention.key_length")
                                  .without("bailingmoe.attention.value_length");
    CHECK(model.built(program) == "");
    for (const kernels::Step &step : program.steps)
        if (const auto *a = std::get_if<kernels::Attention>(&step)) CHECK(a->head_dim_k == 32);
}

TEST_CASE(
    "model: the context of sparse attention is the number of keys it chooses, unless the user chooses more") {
    ModelShape shape;
    shape.arch = "glm-dsa";
    EditedModel model(shape);
    model.set("glm-dsa.attention.indexer.top_k", 100u);
    const gguf::File file = gguf::File::open(model.write());
    CHECK(model::build(file).hyper.context_length == 100);
    CHECK(model::build(file, 100).hyper.context_length == 100);
    CHECK(model::build(file, 100).hyper.context_is_limit);
    const model::Model longer = model::build(file, 101);
    CHECK(longer.hyper.context_length == shape.context);
    CHECK(!longer.hyper.context_is_limit);
    check_refused(EditedModel(shape).without("glm-dsa.attention.indexer.top_k"), "attention.indexer.top_k");
}

TEST_CASE("model: bitnet's activation is what the file says") {
    ModelShape shape;
    shape.arch = "bitnet";
    const auto act = [](const EditedModel &model) {
        kernels::Program program;
        CHECK(model.built(program) == "");
        for (const kernels::Step &step : program.steps)
            if (const auto *activation = std::get_if<kernels::Activation>(&step)) return activation->act;
        return kernels::Activation::Kind::Identity;
    };
    CHECK(act(EditedModel(shape)) == kernels::Activation::Kind::Silu);
    CHECK(act(EditedModel(shape).set("bitnet.hidden_activation", "relu2")) ==
          kernels::Activation::Kind::ReluSquared);
    check_refused(EditedModel(shape).set("bitnet.hidden_activation", "gelu"), "bitnet.hidden_activation");
}

TEST_CASE("model: deepseek2-ocr with a window is refused") {
    ModelShape shape;
    shape.arch = "deepseek2-ocr", shape.kv_heads = 4;
    check_refused(EditedModel(shape).set("deepseek2-ocr.attention.sliding_window", 64u),
                  "deepseek2-ocr.attention.sliding_window: is not supported");
}

TEST_CASE("model: names in the file cannot disturb the message") {
    check_refused(EditedModel().set("general.architecture", "gpt\x1b[2J\nx"), "gpt\\x1b[2J\\x0ax");
    check_refused(EditedModel().set("general.architecture", std::string(100000, 'x').c_str()), "xxx...");
    check_refused(EditedModel().without("general.architecture"), "general.architecture");
    check_refused(EditedModel().set("llama.rope.scaling.type", "\x1b]0;\a"), "\\x1b");
}
