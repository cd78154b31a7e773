// Conversions of small folders: every number of the output is known from the numbers of the folder. The whole models are
// compared with Hugging Face's transformers by scripts/check-convert.
#include "engine/convert/convert.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>

#include "engine/model/model.h"
#include "gguf/file.h"
#include "gguf/half.h"
#include "gguf/quantize.h"
#include "tests/support/hub_folder.h"

using namespace runnel;
using namespace runnel::convert;
using namespace runnel::testing;
using Json = nlohmann::json;

namespace {

constexpr int64_t kVocab = 260, kWidth = 8, kHeads = 2, kHeadDim = 4, kForward = 12;

struct Folder {
    TemporaryDirectory directory;
    Json config, tokenizer = bare_tokenizer();
    SafetensorsBytes weights;
    mutable int files = 0;  // made so far: a file that is read is never replaced

    void write() const {
        write_text(directory / "config.json", config.dump());
        write_text(directory / "tokenizer.json", tokenizer.dump());
        write_text(directory / "tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
        write_text(directory / "model.safetensors", weights.bytes());
    }
    gguf::File convert(Matrices matrices = Matrices::AsStored) const {
        write();
        const Safetensors source = Safetensors::open(directory.path());
        Plan plan = plan_conversion(directory.path(), source, matrices);
        const auto path = directory / ("out" + std::to_string(++files) + ".gguf");
        CHECK(plan.write(path, {}, [](uint64_t) { return true; }));
        return gguf::File::open(path);
    }
    std::string error() const {
        try {
            convert();
        } catch (const gguf::FileError &error) {
            return error.what();
        }
        return "";
    }
};

Json sizes(const char *name) {
    return {{"architectures", {name}},       {"num_hidden_layers", 1},        {"hidden_size", kWidth},
            {"num_attention_heads", kHeads}, {"num_key_value_heads", 1},      {"head_dim", kHeadDim},
            {"intermediate_size", kForward}, {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-5},
            {"hidden_act", "silu"},          {"rope_theta", 10000.0}};
}

void add_plain(Folder &folder) {
    SafetensorsBytes &w = folder.weights;
    const std::string layer = "model.layers.0.";
    w.add("model.embed_tokens.weight", {kVocab, kWidth}, counted(kVocab * kWidth, 0));
    w.add("model.norm.weight", {kWidth}, counted(kWidth, 2));
    w.add("lm_head.weight", {kVocab, kWidth}, counted(kVocab * kWidth, 1));
    w.add(layer + "input_layernorm.weight", {kWidth}, counted(kWidth, 3));
    w.add(layer + "post_attention_layernorm.weight", {kWidth}, counted(kWidth, 4));
    w.add(layer + "self_attn.q_proj.weight", {kHeads * kHeadDim, kWidth},
          counted(kHeads * kHeadDim * kWidth, 5));
    w.add(layer + "self_attn.k_proj.weight", {kHeadDim, kWidth}, counted(kHeadDim * kWidth, 6));
    w.add(layer + "self_attn.v_proj.weight", {kHeadDim, kWidth}, counted(kHeadDim * kWidth, 7));
    w.add(layer + "self_attn.o_proj.weight", {kWidth, kHeads * kHeadDim},
          counted(kHeads * kHeadDim * kWidth, 8));
    w.add(layer + "mlp.gate_proj.weight", {kForward, kWidth}, counted(kForward * kWidth, 9));
    w.add(layer + "mlp.up_proj.weight", {kForward, kWidth}, counted(kForward * kWidth, 10));
    w.add(layer + "mlp.down_proj.weight", {kWidth, kForward}, counted(kForward * kWidth, 11));
}

std::vector<float> values(const gguf::File &file, const std::string &name) {
    const gguf::Tensor *const tensor = file.find_tensor(name);
    REQUIRE_MESSAGE(tensor != nullptr, name);
    std::vector<float> all(static_cast<size_t>(tensor->elements()));
    gguf::dequantize_row(tensor->type, tensor->data, all.data(), tensor->elements());
    return all;
}

TEST_CASE("convert: llama, with query and key rows from halves to pairs") {
    Folder folder;
    folder.config = sizes("LlamaForCausalLM");
    add_plain(folder);
    const gguf::File file = folder.convert();
    CHECK(file.tensors().size() == 12);
    CHECK(values(file, "token_embd.weight") == counted(kVocab * kWidth, 0));
    CHECK(values(file, "output.weight") == counted(kVocab * kWidth, 1));
    CHECK(values(file, "blk.0.attn_v.weight") == counted(kHeadDim * kWidth, 7));
    CHECK(values(file, "blk.0.ffn_down.weight") == counted(kForward * kWidth, 11));
    CHECK(file.find_tensor("blk.0.ffn_down.weight")->shape[0] == kForward);
    // Rows 0, 1, 2, 3 of a head were the first and the second half of two pairs: 0 and 2, 1 and 3.
    const std::vector<float> q = values(file, "blk.0.attn_q.weight"),
                             in = counted(kHeads * kHeadDim * kWidth, 5);
    const int from[] = {0, 2, 1, 3, 4, 6, 5, 7};
    for (size_t row = 0; row < 8; ++row)
        for (size_t column = 0; column < 8; ++column)
            CHECK(q[row * 8 + column] == in[static_cast<size_t>(from[row]) * 8 + column]);
    CHECK(file.find("llama.attention.head_count_kv")->as_int() == 1);
    CHECK(file.find("llama.rope.freq_base")->as_float() == 10000);
    CHECK(file.find("general.file_type")->as_int() == 0);
}

TEST_CASE("convert: tied, and equal tables are stored once; the types of matrices") {
    Folder folder;
    folder.config = sizes("Qwen2ForCausalLM");
    add_plain(folder);
    Folder tied;
    tied.config = folder.config;
    add_plain(tied);
    // The same numbers in both tables.
    std::memcpy(tied.weights.data.data() + kVocab * kWidth * 4 + kWidth * 4, tied.weights.data.data(),
                kVocab * kWidth * 4);
    CHECK(tied.convert().find_tensor("output.weight") == nullptr);
    CHECK(folder.convert().find_tensor("output.weight") != nullptr);
    const gguf::File half = folder.convert(Matrices::F16), brain = folder.convert(Matrices::BF16);
    CHECK(half.find_tensor("blk.0.ffn_up.weight")->type == gguf::Type::F16);
    CHECK(half.find_tensor("blk.0.ffn_norm.weight")->type == gguf::Type::F32);
    CHECK(brain.find_tensor("blk.0.ffn_up.weight")->type == gguf::Type::BF16);
    const std::vector<float> exact = counted(kForward * kWidth, 10),
                             rounded = values(brain, "blk.0.ffn_up.weight");
    for (size_t i = 0; i < exact.size(); ++i)
        CHECK(rounded[i] == gguf::bf16_to_f32(gguf::f32_to_bf16(exact[i])));
}

TEST_CASE("convert: the divisors of Llama 3.1's RoPE") {
    Folder folder;
    folder.config = sizes("LlamaForCausalLM");
    folder.config["rope_scaling"] = {{"rope_type", "llama3"},
                                     {"factor", 8.0},
                                     {"low_freq_factor", 1.0},
                                     {"high_freq_factor", 4.0},
                                     {"original_max_position_embeddings", 32}};
    add_plain(folder);
    // Wavelengths 2 pi and 200 pi; 32 / 4 and 32 / 1 are the borders.
    CHECK(values(folder.convert(), "rope_freqs.weight") == std::vector<float>{1, 8});
    folder.config["rope_scaling"]["original_max_position_embeddings"] = 16;
    const double smooth = (16 / (2 * 3.14159265358979) - 1) / 3;
    CHECK(values(folder.convert(), "rope_freqs.weight")[0] ==
          doctest::Approx(1 / ((1 - smooth) / 8 + smooth)).epsilon(1e-6));
    folder.config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
    CHECK(folder.error().find("'dynamic' is a scaling of RoPE that cannot be converted") !=
          std::string::npos);
}

TEST_CASE("convert: experts are stacked, separate or fused") {
    for (const bool fused : {false, true}) {
        CAPTURE(fused);
        Folder folder;
        folder.config = sizes("Qwen3MoeForCausalLM");
        folder.config.update({{"num_experts", 3},
                              {"num_experts_per_tok", 2},
                              {"moe_intermediate_size", 2},
                              {"norm_topk_prob", true}});
        add_plain(folder);
        Folder moe;
        moe.config = folder.config;
        SafetensorsBytes &w = moe.weights;
        for (const auto &[name, entry] : folder.weights.header.items())
            if (name.find(".mlp.") == std::string::npos)
                w.add(name, "F32", entry["shape"],
                      folder.weights.data.substr(
                          entry["data_offsets"][0],
                          entry["data_offsets"][1].get<size_t>() - entry["data_offsets"][0].get<size_t>()));
        const std::string mlp = "model.layers.0.mlp.";
        w.add("model.layers.0.self_attn.q_norm.weight", {kHeadDim}, counted(kHeadDim, 1));
        w.add("model.layers.0.self_attn.k_norm.weight", {kHeadDim}, counted(kHeadDim, 1));
        w.add(mlp + "gate.weight", {3, kWidth}, counted(3 * kWidth, 0));
        const auto gate = [](int e) { return counted(2 * kWidth, 100.0f + 10.0f * static_cast<float>(e)); };
        const auto up = [](int e) { return counted(2 * kWidth, 200.0f + 10.0f * static_cast<float>(e)); };
        std::vector<float> both, gates, ups;
        for (int e = 0; e < 3; ++e) {
            const std::vector<float> g = gate(e), u = up(e);
            both.insert(both.end(), g.begin(), g.end()), both.insert(both.end(), u.begin(), u.end());
            gates.insert(gates.end(), g.begin(), g.end()), ups.insert(ups.end(), u.begin(), u.end());
            if (fused) continue;
            const std::string expert = mlp + "experts." + std::to_string(e) + ".";
            w.add(expert + "gate_proj.weight", {2, kWidth}, g);
            w.add(expert + "up_proj.weight", {2, kWidth}, u);
            w.add(expert + "down_proj.weight", {kWidth, 2}, counted(2 * kWidth, static_cast<float>(e)));
        }
        if (fused) {
            w.add(mlp + "experts.gate_up_proj", {3, 4, kWidth}, both);
            w.add(mlp + "experts.down_proj", {3, kWidth, 2}, counted(6 * kWidth, 0));
        }
        const gguf::File file = moe.convert();
        CHECK(values(file, "blk.0.ffn_gate_exps.weight") == gates);
        CHECK(values(file, "blk.0.ffn_up_exps.weight") == ups);
        const gguf::Tensor *const down = file.find_tensor("blk.0.ffn_down_exps.weight");
        CHECK((down->shape[0] == 2 && down->shape[1] == kWidth && down->shape[2] == 3));
        CHECK(file.find("qwen3moe.expert_count")->as_int() == 3);
    }
}

TEST_CASE("convert: gpt-oss, MXFP4 blocks with gate and up in turns") {
    constexpr int64_t kExperts = 2, kRows = 32;
    Folder folder;
    folder.config = sizes("GptOssForCausalLM");
    folder.config.update({{"hidden_size", 32},
                          {"num_local_experts", kExperts},
                          {"num_experts_per_tok", 1},
                          {"intermediate_size", kRows},
                          {"sliding_window", 16},
                          {"layer_types", {"sliding_attention"}},
                          {"quantization_config", {{"quant_method", "mxfp4"}}}});
    SafetensorsBytes &w = folder.weights;
    const std::string layer = "model.layers.0.", experts = layer + "mlp.experts.";
    const auto add = [&](const std::string &name, std::vector<int64_t> shape) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        w.add(name, shape, counted(count, 0));
    };
    add("model.embed_tokens.weight", {kVocab, 32});
    add("model.norm.weight", {32});
    add("lm_head.weight", {kVocab, 32});
    for (const char *const norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        add(layer + norm, {32});
    add(layer + "self_attn.q_proj.weight", {8, 32});
    add(layer + "self_attn.k_proj.weight", {4, 32});
    add(layer + "self_attn.v_proj.weight", {4, 32});
    add(layer + "self_attn.o_proj.weight", {32, 8});
    add(layer + "self_attn.sinks", {kHeads});
    add(layer + "mlp.router.weight", {kExperts, 32});
    add(layer + "mlp.router.bias", {kExperts});
    std::string blocks, scales;
    std::mt19937 random(5);
    for (int64_t i = 0; i < kExperts * 2 * kRows * 16; ++i) blocks += static_cast<char>(random());
    for (int64_t i = 0; i < kExperts * 2 * kRows; ++i) scales += static_cast<char>(120 + random() % 16);
    w.add(experts + "gate_up_proj_blocks", "U8", {kExperts, 2 * kRows, 1, 16}, blocks);
    w.add(experts + "gate_up_proj_scales", "U8", {kExperts, 2 * kRows, 1}, scales);
    add(experts + "gate_up_proj_bias", {kExperts, 2 * kRows});
    w.add(experts + "down_proj_blocks", "U8", {kExperts, 32, 1, 16}, blocks.substr(0, kExperts * 32 * 16));
    w.add(experts + "down_proj_scales", "U8", {kExperts, 32, 1}, scales.substr(0, kExperts * 32));
    add(experts + "down_proj_bias", {kExperts, 32});
    const gguf::File file = folder.convert();
    // The values of a row of the folder: element 2i in the low nibble of byte i, 2i + 1 in the high one.
    const auto row_of = [&](int64_t row) {
        constexpr float kLevels[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
        std::vector<float> row_values;
        for (int64_t column = 0; column < 32; ++column) {
            const auto byte = static_cast<uint8_t>(blocks[static_cast<size_t>(row * 16 + column / 2)]);
            const int code = column % 2 == 0 ? byte & 15 : byte >> 4;
            const int scale = static_cast<uint8_t>(scales[static_cast<size_t>(row)]) - 127;
            row_values.push_back(std::ldexp(code < 8 ? kLevels[code] : -kLevels[code - 8], scale));
        }
        return row_values;
    };
    std::vector<float> gates, ups, downs;
    const auto append = [](std::vector<float> &to, const std::vector<float> &from) {
        to.insert(to.end(), from.begin(), from.end());
    };
    for (int64_t row = 0; row < kExperts * 2 * kRows; ++row) append(row % 2 == 0 ? gates : ups, row_of(row));
    for (int64_t row = 0; row < kExperts * 32; ++row) append(downs, row_of(row));
    CHECK(values(file, "blk.0.ffn_gate_exps.weight") == gates);
    CHECK(values(file, "blk.0.ffn_up_exps.weight") == ups);
    CHECK(values(file, "blk.0.ffn_down_exps.weight") == downs);
    const std::vector<float> biases = counted(kExperts * 2 * kRows, 0),
                             up = values(file, "blk.0.ffn_up_exps.bias");
    REQUIRE(up.size() == kExperts * kRows);
    for (size_t i = 0; i < up.size(); ++i) CHECK(up[i] == biases[2 * i + 1]);
}

TEST_CASE("convert: the norms of gemma3 become 1 + weight, and its layers' windows are written") {
    Folder folder;
    folder.config = sizes("Gemma3ForCausalLM");
    folder.config.erase("hidden_act");
    folder.config.update({{"hidden_activation", "gelu_pytorch_tanh"},
                          {"query_pre_attn_scalar", kHeadDim},
                          {"sliding_window", 32},
                          {"layer_types", {"full_attention"}},
                          {"rope_local_base_freq", 5000.0}});
    add_plain(folder);
    const std::string layer = "model.layers.0.";
    for (const char *const norm : {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"})
        folder.weights.add(layer + norm, {kWidth}, counted(kWidth, 12));
    for (const char *const norm : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"})
        folder.weights.add(layer + norm, {kHeadDim}, counted(kHeadDim, 13));
    const gguf::File file = folder.convert();
    CHECK(values(file, "output_norm.weight") == counted(kWidth, 3));
    CHECK(values(file, "blk.0.post_attention_norm.weight") == counted(kWidth, 5));
    CHECK(values(file, "blk.0.ffn_norm.weight") == counted(kWidth, 13));
    CHECK(values(file, "blk.0.attn_k_norm.weight") == counted(kHeadDim, 14));
    CHECK(values(file, "blk.0.attn_q.weight") == counted(kHeads * kHeadDim * kWidth, 5));
    CHECK(file.find("gemma3.rope.freq_base_swa")->as_float() == 5000);
    REQUIRE(file.find("gemma3.attention.sliding_window_pattern"));
    folder.config["query_pre_attn_scalar"] = 64;
    CHECK(folder.error().find("'query_pre_attn_scalar' is not the size of a head") != std::string::npos);
}

TEST_CASE(
    "convert: gemma3n, with AltUp's matrices in one tensor and an embedding per layer for every token") {
    constexpr int64_t kRank = 2, kLayerInput = 3, kLayerRows = kVocab - 4, kStreams = 4;
    Folder folder;
    folder.config = {{"architectures", {"Gemma3nForConditionalGeneration"}}, {"text_config", sizes("")}};
    Json &text = folder.config["text_config"];
    text.update({{"num_hidden_layers", 2},
                 {"intermediate_size", {kForward, kForward}},
                 {"sliding_window", 32},
                 {"layer_types", {"full_attention", "full_attention"}},
                 {"num_kv_shared_layers", 1},
                 {"hidden_size_per_layer_input", kLayerInput},
                 {"activation_sparsity_pattern", {0.95, 0.0}}});
    SafetensorsBytes &w = folder.weights;
    const auto add = [&](const std::string &name, const std::vector<int64_t> &shape, float first = 0) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        w.add("model." + name, shape, counted(count, first));
    };
    for (const char *const name : {"vision_tower.a", "audio_tower.a", "embed_vision.a", "embed_audio.a"})
        add(name, {2});
    const std::string model = "language_model.";
    add(model + "embed_tokens.weight", {kVocab, kWidth});
    add(model + "norm.weight", {kWidth}, 2);
    add(model + "embed_tokens_per_layer.weight", {kLayerRows, 2 * kLayerInput});
    add(model + "per_layer_model_projection.weight", {2 * kLayerInput, kWidth});
    add(model + "per_layer_projection_norm.weight", {kLayerInput});
    std::vector<float> stacked;
    for (int i = 0; i < 3; ++i) {
        const std::string number = std::to_string(i);
        add(model + "altup_projections." + number + ".weight", {kWidth, kWidth}, static_cast<float>(i));
        add(model + "altup_unembed_projections." + number + ".weight", {kWidth, kWidth});
        const std::vector<float> one = counted(kWidth * kWidth, static_cast<float>(i));
        stacked.insert(stacked.end(), one.begin(), one.end());
    }
    for (int i = 0; i < 2; ++i) {
        const std::string layer = model + "layers." + std::to_string(i) + ".",
                          attention = layer + "self_attn.";
        for (const char *const norm :
             {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
              "post_feedforward_layernorm", "post_per_layer_input_norm", "altup.router_norm",
              "laurel.post_laurel_norm"})
            add(layer + norm + ".weight", {kWidth}, 4);
        add(layer + "altup.correct_output_scale", {kWidth}, 5);
        add(layer + "altup.modality_router.weight", {kStreams, kWidth});
        add(layer + "altup.prediction_coefs.weight", {kStreams * kStreams, kStreams});
        add(layer + "altup.correction_coefs.weight", {kStreams, kStreams});
        add(layer + "laurel.linear_left.weight", {kRank, kWidth});
        add(layer + "laurel.linear_right.weight", {kWidth, kRank});
        add(layer + "per_layer_input_gate.weight", {kLayerInput, kWidth});
        add(layer + "per_layer_projection.weight", {kWidth, kLayerInput});
        add(layer + "mlp.gate_proj.weight", {kForward, kWidth});
        add(layer + "mlp.up_proj.weight", {kForward, kWidth});
        add(layer + "mlp.down_proj.weight", {kWidth, kForward});
        add(attention + "q_proj.weight", {kHeads * kHeadDim, kWidth});
        add(attention + "q_norm.weight", {kHeadDim});
        add(attention + "o_proj.weight", {kWidth, kHeads * kHeadDim});
        if (i == 1) continue;  // reads the keys of layer 0
        add(attention + "k_proj.weight", {kHeadDim, kWidth});
        add(attention + "v_proj.weight", {kHeadDim, kWidth});
        add(attention + "k_norm.weight", {kHeadDim});
    }
    const gguf::File file = folder.convert(Matrices::BF16);
    CHECK_NOTHROW(model::build(file, 64));
    CHECK(values(folder.convert(), "altup_proj.weight") == stacked);
    CHECK(file.find_tensor("altup_proj.weight")->shape[2] == 3);
    for (const char *const name :
         {"altup_predict_coef", "altup_correct_coef", "altup_correct_scale", "post_norm"})
        CHECK(file.find_tensor(std::string("blk.1.") + name + ".weight")->type == gguf::Type::F32);
    CHECK(file.find_tensor("blk.1.laurel_l.weight")->type == gguf::Type::BF16);
    CHECK(values(file, "blk.1.altup_correct_scale.weight") == counted(kWidth, 5));
    CHECK(values(file, "blk.0.attn_norm.weight") == counted(kWidth, 4));
    // Tokens beyond the table have the embeddings of token 0.
    const std::vector<float> table = values(folder.convert(), "per_layer_token_embd.weight"),
                             given = counted(kLayerRows * 2 * kLayerInput, 0);
    REQUIRE(table.size() == kVocab * 2 * kLayerInput);
    for (size_t i = 0; i < table.size(); ++i)
        CHECK(table[i] == (i < given.size() ? given[i] : given[i % (2 * kLayerInput)]));
    const std::vector<float> scales = file.find("gemma3n.activation_sparsity_scale")->as_floats();
    CHECK(scales == std::vector<float>{1.6448536f, -INFINITY});
    CHECK(file.find("gemma3n.attention.shared_kv_layers")->as_int() == 1);
    CHECK(file.find("gemma3n.feed_forward_length")->as_int() == kForward);
    CHECK(file.find("gemma3n.final_logit_softcapping")->as_float() == 30);
    text["intermediate_size"] = {kForward, kForward + 1};
    CHECK(folder.error().find("not the same number for every layer") != std::string::npos);
    text["intermediate_size"] = kForward;
    text["num_kv_shared_layers"] = 0;
    CHECK(folder.error().find("lacks the tensor 'model.language_model.layers.1.self_attn.k_proj.weight'") !=
          std::string::npos);
    text["activation_sparsity_pattern"] = {0.95, 1.0};
    CHECK(folder.error().find("not in [0, 1)") != std::string::npos);
    text["altup_num_inputs"] = 3;
    CHECK(folder.error().find("'altup_num_inputs' is not 4") != std::string::npos);
}

TEST_CASE("convert: the projections of lfm2's convolutions are matrices, the convolutions F32") {
    Folder folder;
    folder.config = sizes("Lfm2ForCausalLM");
    folder.config.update({{"layer_types", {"conv"}}, {"norm_eps", 1e-5}, {"conv_L_cache", 3}});
    SafetensorsBytes &w = folder.weights;
    const auto add = [&](const std::string &name, const std::vector<int64_t> &shape) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        w.add(name, shape, counted(count, 0));
    };
    const std::string layer = "model.layers.0.";
    add("model.embed_tokens.weight", {kVocab, kWidth});
    add("model.embedding_norm.weight", {kWidth});
    for (const char *const norm : {"operator_norm.weight", "ffn_norm.weight"}) add(layer + norm, {kWidth});
    add(layer + "feed_forward.w1.weight", {kForward, kWidth});
    add(layer + "feed_forward.w3.weight", {kForward, kWidth});
    add(layer + "feed_forward.w2.weight", {kWidth, kForward});
    add(layer + "conv.conv.weight", {kWidth, 1, 3});
    add(layer + "conv.in_proj.weight", {3 * kWidth, kWidth});
    add(layer + "conv.out_proj.weight", {kWidth, kWidth});
    const gguf::File file = folder.convert(Matrices::BF16);
    CHECK(file.find_tensor("blk.0.shortconv.in_proj.weight")->type == gguf::Type::BF16);
    CHECK(file.find_tensor("blk.0.shortconv.out_proj.weight")->type == gguf::Type::BF16);
    CHECK(file.find_tensor("blk.0.shortconv.conv.weight")->type == gguf::Type::F32);
    CHECK(values(file, "blk.0.shortconv.conv.weight") == counted(3 * kWidth, 0));
    CHECK(file.find("lfm2.feed_forward_length")->as_int() == kForward);
}

TEST_CASE("convert: the value heads of qwen35's delta nets change their order") {
    constexpr int64_t kKeyHeads = 2, kValueHeads = 4, kKeyDim = 4, kValueDim = 3, kTaps = 2, kChannels = 28;
    Folder folder;
    folder.config = sizes("Qwen3_5ForCausalLM");
    folder.config.update({{"layer_types", {"linear_attention"}},
                          {"linear_num_key_heads", kKeyHeads},
                          {"linear_num_value_heads", kValueHeads},
                          {"linear_key_head_dim", kKeyDim},
                          {"linear_value_head_dim", kValueDim},
                          {"linear_conv_kernel_dim", kTaps}});
    SafetensorsBytes &w = folder.weights;
    const auto add = [&](const std::string &name, const std::vector<int64_t> &shape) {
        int64_t count = 1;
        for (const int64_t n : shape) count *= n;
        w.add(name, shape, counted(count, 0));
    };
    const std::string layer = "model.layers.0.", delta = layer + "linear_attn.";
    add("model.embed_tokens.weight", {kVocab, kWidth});
    add("model.norm.weight", {kWidth});
    for (const char *const norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        add(layer + norm, {kWidth});
    add(layer + "mlp.gate_proj.weight", {kForward, kWidth});
    add(layer + "mlp.up_proj.weight", {kForward, kWidth});
    add(layer + "mlp.down_proj.weight", {kWidth, kForward});
    add(delta + "in_proj_qkv.weight", {kChannels, kWidth});
    add(delta + "in_proj_z.weight", {kValueHeads * kValueDim, kWidth});
    add(delta + "in_proj_b.weight", {kValueHeads, kWidth});
    add(delta + "in_proj_a.weight", {kValueHeads, kWidth});
    add(delta + "A_log", {kValueHeads});
    add(delta + "dt_bias", {kValueHeads});
    add(delta + "conv1d.weight", {kChannels, 1, kTaps});
    add(delta + "norm.weight", {kValueDim});
    add(delta + "out_proj.weight", {kWidth, kValueHeads * kValueDim});
    const gguf::File file = folder.convert();
    // In the folder heads 0 and 1 belong to the first key head, in the file heads 0 and 2.
    constexpr int64_t kFrom[] = {0, 2, 1, 3};
    const auto moved = [&](int64_t row) {
        return row < 16 ? row : 16 + kFrom[(row - 16) / kValueDim] * kValueDim + (row - 16) % kValueDim;
    };
    const std::vector<float> qkv = values(file, "blk.0.attn_qkv.weight"),
                             z = values(file, "blk.0.attn_gate.weight"),
                             conv = values(file, "blk.0.ssm_conv1d.weight"), a = values(file, "blk.0.ssm_a"),
                             beta = values(file, "blk.0.ssm_beta.weight"),
                             out = values(file, "blk.0.ssm_out.weight");
    const auto number = [](int64_t index) { return static_cast<float>(index) / 64; };
    for (int64_t row = 0; row < kChannels; ++row) {
        for (int64_t c = 0; c < kWidth; ++c)
            CHECK(qkv[static_cast<size_t>(row * kWidth + c)] == number(moved(row) * kWidth + c));
        for (int64_t t = 0; t < kTaps; ++t)
            CHECK(conv[static_cast<size_t>(row * kTaps + t)] == number(moved(row) * kTaps + t));
    }
    for (int64_t i = 0; i < kValueHeads * kValueDim; ++i) {
        CHECK(z[static_cast<size_t>(i * kWidth)] == number((moved(16 + i) - 16) * kWidth));
        for (int64_t row = 0; row < kWidth; ++row)
            CHECK(out[static_cast<size_t>(row * 12 + i)] == number(row * 12 + moved(16 + i) - 16));
    }
    for (size_t head = 0; head < 4; ++head) {
        CHECK(a[head] == -std::exp(number(kFrom[head])));
        CHECK(beta[head * kWidth] == number(kFrom[head] * kWidth));
    }
    CHECK(values(file, "blk.0.ssm_norm.weight") == counted(kValueDim, 0));
    CHECK(values(file, "blk.0.attn_norm.weight") == counted(kWidth, 1));
    CHECK(file.find("qwen35.full_attention_interval")->as_int() == 2);
    folder.config["linear_num_value_heads"] = 3;
    CHECK(folder.error().find("is not a multiple of linear_num_key_heads") != std::string::npos);
}

TEST_CASE("convert: what the folder has and the architecture has not is refused") {
    struct Case {
        const char *expected;
        std::function<void(Folder &)> change;
    };
    const Case cases[] = {
        {"'FooForCausalLM', which cannot be converted",
         [](Folder &f) { f.config["architectures"] = {"FooForCausalLM"}; }},
        {"'architectures' is missing", [](Folder &f) { f.config.erase("architectures"); }},
        {"the weights are quantized ('fp8')",
         [](Folder &f) {
             f.config["quantization_config"] = {{"quant_method", "fp8"}};
         }},
        {"this architecture has silu", [](Folder &f) { f.config["hidden_act"] = "gelu"; }},
        {"'sliding_window' is set", [](Folder &f) { f.config["sliding_window"] = 4096; }},
        {"'num_hidden_layers' is missing", [](Folder &f) { f.config.erase("num_hidden_layers"); }},
        {"not a whole number", [](Folder &f) { f.config["hidden_size"] = -8; }},
        {"is 0", [](Folder &f) { f.config["num_attention_heads"] = 0; }},
        {"lacks the tensor 'model.layers.1.input_layernorm.weight'",
         [](Folder &f) { f.config["num_hidden_layers"] = 2; }},
        {"config.json implies [8, 8]",
         [](Folder &f) {
             f.weights.header["model.layers.0.self_attn.q_proj.weight"]["shape"] = {4, 16};
         }},
        {"belongs to no part of the model",
         [](Folder &f) {
             f.weights.add("model.layers.0.extra.weight", {2}, {1, 2});
         }},
        {"only F32, F16 and BF16", [](Folder &f) { f.weights.header["model.norm.weight"]["dtype"] = "I32"; }},
        {"tokenizer.json", [](Folder &f) { f.tokenizer["model"]["type"] = "Unigram"; }},
    };
    for (const Case &one : cases) {
        Folder folder;
        folder.config = sizes("LlamaForCausalLM");
        add_plain(folder);
        one.change(folder);
        const std::string error = folder.error();
        CAPTURE(one.expected);
        CAPTURE(error);
        CHECK(error.find(one.expected) != std::string::npos);
        CHECK_FALSE(std::filesystem::exists(folder.directory / "out1.gguf"));
    }
}

TEST_CASE("convert: numbers beyond F16 are an error of --type f16, not infinity") {
    Folder folder;
    folder.config = sizes("LlamaForCausalLM");
    add_plain(folder);
    const float huge = 70000;
    std::memcpy(folder.weights.data.data() + 400, &huge, 4);
    CHECK(values(folder.convert(), "token_embd.weight")[100] == huge);
    folder.write();
    const Safetensors source = Safetensors::open(folder.directory.path());
    Plan plan = plan_conversion(folder.directory.path(), source, Matrices::F16);
    CHECK_THROWS_WITH_AS(plan.write(folder.directory / "half.gguf", {}, [](uint64_t) { return true; }),
                         doctest::Contains("beyond the range of F16"), gguf::FileError);
    CHECK_FALSE(std::filesystem::exists(folder.directory / "half.gguf"));
}

TEST_CASE("convert: the name of the folder, also in Hugging Face's cache") {
    Folder folder;
    folder.config = sizes("LlamaForCausalLM");
    add_plain(folder);
    folder.write();
    const auto hub = folder.directory / "models--maker--Tales-1B/snapshots";
    std::filesystem::create_directories(hub);
    std::filesystem::create_directory_symlink(folder.directory.path(), hub / "0123abc");
    const Safetensors source = Safetensors::open(hub / "0123abc/");
    Plan plan = plan_conversion(hub / "0123abc/", source, Matrices::AsStored);
    REQUIRE(plan.write(folder.directory / "named.gguf", {}, [](uint64_t) { return true; }));
    const gguf::File file = gguf::File::open(folder.directory / "named.gguf");
    CHECK(file.find("general.name")->as_string() == "Tales-1B");
    CHECK(folder.convert().find("general.name")->as_string() == folder.directory.path().filename().native());
}

TEST_CASE("convert: a stop leaves nothing") {
    Folder folder;
    folder.config = sizes("LlamaForCausalLM");
    add_plain(folder);
    folder.write();
    const Safetensors source = Safetensors::open(folder.directory.path());
    Plan plan = plan_conversion(folder.directory.path(), source, Matrices::AsStored);
    CHECK_FALSE(plan.write(folder.directory / "out.gguf", {}, [](uint64_t) { return false; }));
    CHECK_FALSE(std::filesystem::exists(folder.directory / "out.gguf"));
}

}  // namespace
