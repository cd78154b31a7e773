// The types that the mixes choose for a model's tensors.
#include "engine/quantize/mix.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

using namespace runnel;
using namespace runnel::quantize;
using gguf::Type;

namespace {

struct Llama {
    int64_t layers = 32, width = 4096, kv_width = 1024, ff = 14336;
    bool tied = false;
    std::vector<std::string> names = {};
    std::vector<TensorShape> tensors = {};

    void make() {
        const auto add = [&](std::string name, int64_t columns, int64_t rows) {
            names.push_back(std::move(name));
            tensors.push_back({{}, Type::F16, {columns, rows, 1, 1}});
        };
        add("token_embd.weight", width, 1000);
        for (int64_t i = 0; i < layers; ++i) {
            const std::string blk = "blk." + std::to_string(i) + ".";
            add(blk + "attn_norm.weight", width, 1);
            add(blk + "attn_q.weight", width, width);
            add(blk + "attn_k.weight", width, kv_width);
            add(blk + "attn_v.weight", width, kv_width);
            add(blk + "attn_output.weight", width, width);
            add(blk + "ffn_gate.weight", width, ff);
            add(blk + "ffn_up.weight", width, ff);
            add(blk + "ffn_down.weight", ff, width);
        }
        add("output_norm.weight", width, 1);
        if (!tied) add("output.weight", width, 1000);
        for (size_t i = 0; i < names.size(); ++i) tensors[i].name = names[i];
    }
};

using Types = std::map<std::string, Type>;

Types types_of(const char *mix, const Llama &llama, const ModelShape &model, const MixOptions &options = {}) {
    Types types;
    for (const Choice &choice : choose_types(*find_mix(mix), model, llama.tensors, options))
        types[std::string(llama.tensors[choice.tensor].name)] = choice.type;
    return types;
}

std::string layer(int i, const char *name) {
    return "blk." + std::to_string(i) + "." + name + ".weight";
}

}  // namespace

TEST_CASE("mix: Q4_K_M of a Llama 3 8B") {
    Llama llama;
    llama.make();
    const Types types = types_of("q4_k_m", llama, {"llama", 32, 32, 8, 0});
    CHECK(types.at("output.weight") == Type::Q6_K);
    CHECK(types.at("token_embd.weight") == Type::Q4_K);
    CHECK(types.at("output_norm.weight") == Type::F16);  // not quantized
    CHECK(types.at(layer(3, "attn_norm")) == Type::F16);
    // The first and last four layers, and every third between.
    const std::vector<int> more = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};
    for (int i = 0; i < 32; ++i) {
        CAPTURE(i);
        const bool is_more = std::find(more.begin(), more.end(), i) != more.end();
        CHECK(types.at(layer(i, "attn_v")) == (is_more ? Type::Q6_K : Type::Q4_K));
        CHECK(types.at(layer(i, "ffn_down")) == (is_more ? Type::Q6_K : Type::Q4_K));
        CHECK(types.at(layer(i, "ffn_up")) == Type::Q4_K);
    }
}

TEST_CASE("mix: which layers get more bits if the layer count is not a multiple of eight") {
    Llama llama{.layers = 26, .tied = true};
    llama.make();
    const Types types = types_of("Q5_K_M", llama, {"gemma2", 26, 8, 4, 0});
    std::vector<int> more;
    for (int i = 0; i < 26; ++i)
        if (types.at(layer(i, "ffn_down")) == Type::Q6_K) more.push_back(i);
    CHECK(more == std::vector<int>{0, 1, 2, 5, 8, 11, 14, 17, 20, 22, 23, 24, 25});
    CHECK(types.at("token_embd.weight") == Type::Q6_K);  // it is the output matrix as well
}

TEST_CASE("mix: rules by sharing of heads, experts, importance and architecture") {
    Llama llama;
    llama.make();
    const ModelShape shared{"llama", 32, 32, 8, 0}, own{"llama", 32, 32, 32, 0}, eight{"llama", 32, 32, 8, 8};
    CHECK(types_of("Q2_K", llama, shared).at(layer(9, "attn_v")) == Type::Q4_K);
    CHECK(types_of("Q2_K", llama, own).at(layer(9, "attn_v")) == Type::Q3_K);
    CHECK(types_of("Q2_K", llama, own).at(layer(9, "attn_output")) == Type::Q3_K);
    CHECK(types_of("Q4_K_S", llama, eight).at(layer(9, "attn_v")) == Type::Q8_0);
    CHECK(types_of("Q4_K_S", llama, eight).at(layer(9, "attn_k")) == Type::Q8_0);
    CHECK(types_of("Q4_K_S", llama, eight).at(layer(9, "attn_output")) == Type::Q5_K);
    CHECK(types_of("Q4_K_S", llama, own).at(layer(3, "attn_v")) == Type::Q5_K);
    CHECK(types_of("Q4_K_S", llama, own).at(layer(4, "attn_v")) == Type::Q4_K);
    CHECK(types_of("Q4_0", llama, own).at(layer(0, "ffn_down")) == Type::Q4_0);
    CHECK(types_of("Q4_0", llama, own, {.has_importance = true}).at(layer(0, "ffn_down")) == Type::Q4_1);
    CHECK(types_of("IQ4_XS", llama, own).at(layer(0, "ffn_down")) == Type::Q5_K);
    CHECK(types_of("IQ4_XS", llama, own, {.has_importance = true}).at(layer(0, "ffn_down")) == Type::IQ4_XS);
    CHECK(types_of("Q3_K_M", llama, own).at(layer(1, "ffn_down")) == Type::Q5_K);
    CHECK(types_of("Q3_K_M", llama, own).at(layer(2, "ffn_down")) == Type::Q4_K);
    CHECK(types_of("Q3_K_M", llama, {"falcon", 32, 32, 32, 0}).at(layer(5, "ffn_down")) == Type::Q3_K);
    CHECK(types_of("Q8_0", llama, own).at("output.weight") == Type::Q8_0);
    CHECK(types_of("Q4_0", llama, own).at("output.weight") == Type::Q6_K);
}

TEST_CASE("mix: the user's types override the mix, and shapes override both") {
    Llama llama{.layers = 2, .width = 96};
    llama.make();
    const ModelShape model{"llama", 2, 8, 8, 0};
    const Types narrow = types_of("Q4_K_M", llama, model);
    CHECK(narrow.at(layer(0, "attn_q")) == Type::Q5_0);  // 96 columns
    CHECK(narrow.at("output.weight") == Type::Q8_0);
    MixOptions options;
    options.overrides.emplace_back(std::regex("ffn_(up|gate)"), Type::Q8_0);
    options.overrides.emplace_back(std::regex("ffn_up"), Type::F16);  // comes too late
    options.output = Type::F16;
    options.embedding = Type::Q5_1;
    const Types wished = types_of("Q4_0", llama, model, options);
    CHECK(wished.at(layer(1, "ffn_up")) == Type::Q8_0);
    CHECK(wished.at("output.weight") == Type::F16);
    CHECK(wished.at("token_embd.weight") == Type::Q5_1);
    CHECK(types_of("Q4_0", llama, model, {.pure = true}).at("output.weight") == Type::Q4_0);
    options.overrides = {{std::regex("ffn_up"), Type::Q8_0}};
    CHECK(types_of("F16", llama, model, options).at(layer(1, "ffn_up")) == Type::Q8_0);
    CHECK(types_of("Q4_0", llama, model, {.leave_output = true}).at("output.weight") == Type::F16);
    CHECK(find_mix("Q9_K") == nullptr);
    CHECK(find_mix("q4_k") == find_mix("Q4_K_M"));
}

TEST_CASE("mix: of RWKV, only the large matrices are quantized") {
    const std::vector<std::pair<std::string, TensorShape>> kept = {
        {"time_mix_lerp_fused", {{}, Type::F32, {512, 1, 1, 6}}},
        {"time_mix_lerp_x", {{}, Type::F32, {512, 1, 1, 1}}},
        {"time_mix_w0", {{}, Type::F32, {512, 1, 1, 1}}},
        {"time_mix_w1", {{}, Type::F32, {512, 256, 1, 1}}},
        {"time_mix_w2", {{}, Type::F32, {256, 512, 1, 1}}},
        {"time_mix_a1", {{}, Type::F32, {512, 256, 1, 1}}},
        {"time_mix_v2", {{}, Type::F32, {256, 512, 1, 1}}},
        {"time_mix_g1", {{}, Type::F32, {512, 256, 1, 1}}},
        {"time_mix_first", {{}, Type::F32, {256, 2, 1, 1}}},
        {"time_mix_decay_w2", {{}, Type::F32, {256, 512, 1, 1}}},
        {"channel_mix_lerp_k", {{}, Type::F32, {512, 1, 1, 1}}},
    };
    Llama rwkv;
    for (const auto &[name, tensor] : kept) {
        rwkv.names.push_back("blk.0." + name + ".weight");
        rwkv.tensors.push_back(tensor);
    }
    for (const char *name : {"time_mix_key", "time_mix_receptance", "channel_mix_value"}) {
        rwkv.names.push_back(std::string("blk.0.") + name + ".weight");
        rwkv.tensors.push_back({{}, Type::F32, {512, 512, 1, 1}});
    }
    for (size_t i = 0; i < rwkv.names.size(); ++i) rwkv.tensors[i].name = rwkv.names[i];
    for (const auto &[name, type] : types_of("Q4_K_M", rwkv, {"rwkv7", 1, 0, 0, 0})) {
        CAPTURE(name);
        const bool large = name.find("key") != name.npos || name.find("receptance") != name.npos ||
                           name.find("value") != name.npos;
        CHECK(type == (large ? Type::Q4_K : Type::F32));
    }
}

TEST_CASE("mix: tensors are written by layer, then by name") {
    Llama llama{.layers = 11};
    llama.make();
    std::vector<std::string> written;
    for (const Choice &choice : choose_types(*find_mix("F16"), {"llama", 11, 8, 8, 0}, llama.tensors, {}))
        written.emplace_back(llama.tensors[choice.tensor].name);
    CHECK(written[0] == "output.weight");
    CHECK(written[1] == "output_norm.weight");
    CHECK(written[2] == "token_embd.weight");
    CHECK(written[3] == "blk.0.attn_k.weight");
    CHECK(written.back() == "blk.10.ffn_up.weight");
}
