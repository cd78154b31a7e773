// For every family: a file without one of its tensors, with a tensor of another shape, or with another number
// in its metadata is rejected with that tensor's or key's name, unless it describes another valid model.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/edited_model.h"
#include "tests/support/model_families.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

ModelShape smallest(const std::string &family) {
    ModelShape shape;
    shape.arch = family, shape.layers = 6, shape.width = 32, shape.ff = 40, shape.heads = 4,
    shape.vocab = 260, shape.context = 64, shape.threads = 1;
    shape.latent_rank = 16, shape.latent_q_rank = 24, shape.latent_rotated = 8;
    return shape;
}

bool names_one_of(const std::string &error, const std::vector<std::string_view> &names) {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return error.find(name) != error.npos; });
}

// Tensors without which a file is a valid model of another kind.
bool is_optional(std::string_view tensor) {
    for (const std::string_view end : {"output.weight",
                                       "attn_sinks.weight",
                                       "layer_output_scale.weight",
                                       "exp_probs_b.bias",
                                       "exp_probs_b",
                                       "attn_output.bias",
                                       "attn_qkv.bias",
                                       "ffn_down_exps.scale",
                                       "ffn_up.bias",
                                       "ffn_down.bias",
                                       "ffn_gate_inp_shexp.weight",
                                       "ffn_gate_inp.bias",
                                       "ffn_gate_exps.bias",
                                       "ffn_up_exps.bias",
                                       "ffn_down_exps.bias",
                                       "attn_q_norm.weight",
                                       "ssm_conv1d.bias",
                                       "ssm_norm.weight",
                                       "time_mix_key.bias",
                                       "time_mix_value.bias",
                                       "time_mix_receptance.bias"})
        if (tensor.ends_with(end)) return tensor != "attn_output.weight";
    const bool of_qkv = tensor.find("attn_q.") != tensor.npos || tensor.find("attn_k.") != tensor.npos ||
                        tensor.find("attn_v.") != tensor.npos;
    return tensor.starts_with("output.") || (of_qkv && tensor.ends_with(".bias"));
}

// Tensors that a message may name instead: files store some matrices in one piece or in several, and the
// tensors that are present determine which others are expected.
std::vector<std::string_view> neighbors(std::string_view tensor) {
    if (tensor == "token_embd.weight") return {tensor, "output.weight", "ffn_gate_tid2eid"};
    const size_t half = tensor.find('_');
    if (tensor.find(".ssm_in.") != tensor.npos) return {tensor.substr(0, half), "attn_qkv"};
    return {tensor.starts_with("blk.") ? tensor.substr(0, half) : tensor};
}

// Whether the tensor is tested. All layers are alike, so only the first and the last are.
bool is_tried(std::string_view tensor) {
    if (tensor.find(".vis_") != tensor.npos || tensor.find(".indexer.") != tensor.npos)
        return false;  // not read
    if (tensor.starts_with("blk.0.time_mix_v") && !tensor.starts_with("blk.0.time_mix_value"))
        return false;  // not read in RWKV-7's first layer
    return !tensor.starts_with("blk.") || tensor.starts_with("blk.0.") || tensor.starts_with("blk.5.");
}

// Keys of numbers that no tensor's shape depends on, so that any value in range is valid. (deepseek2: the
// sizes in the cache follow from others; llama4: its first layer is dense by default.)
bool is_free(const FamilyFiles &family, std::string_view key) {
    const auto ends = [&](std::string_view end) { return key.ends_with(end); };
    if (family.latent && !family.latent->joint && (ends(".key_length") || ends(".value_length"))) return true;
    if (family.latent && ends(".head_count_kv")) return true;
    const bool no_attention = family.recurrent && family.recurrent->period == 0;
    if (no_attention && !family.recurrent->attention_too && !family.recurrent->alternating &&
        (ends(".head_count") || ends(".feed_forward_length")))
        return true;
    for (const char *by_tensors : {"llama4", "nemotron_h_moe", "bailingmoe2", "hy_v3", "step35"})
        if (family.arch == by_tensors && ends(".leading_dense_block_count")) return true;
    if (family.name == "granitehybrid" && ends("rope.dimension_count")) return true;  // nothing is rotated
    if (key.find(".indexer.") != key.npos) return true;
    for (const std::string_view end :
         {".context_length", ".sliding_window", ".sliding_window_pattern", ".expert_used_count",
          ".expert_shared_count", ".expert_gating_func", ".expert_shared_feed_forward_length", ".vocab_size",
          ".original_context_length", ".shared_kv_layers", ".temperature_length", ".num_loops",
          ".rescale_every_n_layers", ".eos_token_id", ".sinkhorn_iterations"})
        if (key.ends_with(end)) return true;
    return false;
}

// Keys that a message may name instead: those multiplied with it, or with the same meaning.
std::vector<std::string_view> relatives(std::string_view key) {
    const std::string_view name = key.substr(key.find('.') + 1);
    if (name == "block_count")
        return {name, "blk.6.", "blk.5.", "sliding_window_pattern", "per layer", "compress_ratios"};
    if (name == "hash_layer_count") return {name, "ffn_gate_tid2eid", "exp_probs_b"};
    if (name == "leading_dense_block_count" || name == "interleave_moe_layer_step") return {name, "ffn_"};
    if (name == "attention.q_lora_rank") return {name, "attn_q"};
    if (name == "expert_count") return {name, "ffn_"};
    if (name == "full_attention_interval") return {name, "attn_", "ssm_"};
    if (name == "embedding_length_per_layer_input") return {name, "per_layer_", "inp_gate"};
    return {name.substr(name.rfind('.') + 1)};  // the key is a factor of a product
}

}  // namespace

TEST_CASE("contradictions: a tensor that is missing or has another shape is refused by name") {
    int tried = 0;
    for (const FamilyFiles &family : family_files()) {
        CAPTURE(family.name);
        EditedModel model(smallest(family.name));
        REQUIRE(model.error() == "");
        for (const gguf::Tensor &t : model.original().tensors()) {
            if (!is_tried(t.name)) continue;
            CAPTURE(t.name);
            const std::string name(t.name);
            ++tried;
            const std::string missing = EditedModel(model).without_tensor(name).error();
            CAPTURE(missing);
            const std::vector<std::string_view> names = neighbors(t.name);
            CHECK((missing.empty() ? is_optional(t.name) : names_one_of(missing, names)));
            std::vector<int64_t> shape(t.shape, t.shape + t.rank);
            ++shape.back();
            const std::string longer = EditedModel(model).tensor(name, t.type, shape).error();
            CAPTURE(longer);
            // The table of n-grams may have more rows than hashes choose.
            const bool may_be_longer =
                t.name == "token_embd.weight" || (family.qwen4 && t.name == "per_layer_token_embd.weight");
            CHECK((names_one_of(longer, names) || (longer.empty() && may_be_longer)));
            --shape.back();
            shape.front() *= 2;
            const std::string wider = EditedModel(model).tensor(name, t.type, shape).error();
            CAPTURE(wider);
            CHECK(names_one_of(wider, names));
        }
    }
    CHECK(tried > 700);
}

TEST_CASE("contradictions: a number that does not fit the tensors is refused by its key") {
    int tried = 0;
    for (const FamilyFiles &family : family_files()) {
        CAPTURE(family.name);
        EditedModel model(smallest(family.name));
        for (const auto &[key, value] : model.original().metadata()) {
            const auto number = value.as_int();
            if (!key.starts_with(family.arch + ".") || !number || value.as_bool() || is_free(family, key))
                continue;
            CAPTURE(key);
            for (const int64_t other : {*number + 1, *number * 2 + 2, int64_t{0}, int64_t{-1}}) {
                // Files with experts may omit one of the two widths.
                const bool unsaid = other == 0 && family.experts && key.ends_with("feed_forward_length");
                if (other == *number || unsaid) continue;
                CAPTURE(other);
                ++tried;
                const std::string error = EditedModel(model).set(std::string(key), other).error();
                CAPTURE(error);
                if (family.experts && family.experts->width_key && error.empty() &&
                    key.ends_with(".feed_forward_length"))
                    continue;  // applies to dense layers, of which there are none
                const bool partial = other > 0 && key.ends_with("rope.dimension_count");
                CHECK((names_one_of(error, relatives(key)) || (partial && error.empty())));
            }
        }
    }
    CHECK(tried > 1000);
}

TEST_CASE("contradictions: layers of different sizes are refused by key in families that have none") {
    const auto array = [](const std::vector<int32_t> &numbers) {
        return gguf::Array(std::span<const int32_t>(numbers));
    };
    const auto error = [&](const char *family, const std::string &key, const std::vector<int32_t> &numbers) {
        return EditedModel(smallest(family)).set(key, array(numbers)).error();
    };
    CHECK(error("llama", "llama.attention.head_count_kv", {2, 2, 2, 2, 2, 2}) == "");
    CHECK(error("llama", "llama.attention.head_count_kv", {2, 2, 2, 2, 2, 1})
              .find("head_count_kv: differs between") != std::string::npos);
    CHECK(error("gemma4", "gemma4.attention.head_count_kv", {2, 2, 2, 2, 2, 2}) == "");
    CHECK(error("gemma4", "gemma4.attention.head_count_kv", {2, 2, 2}).find("head_count_kv: has 3 entries") !=
          std::string::npos);
    CHECK(error("gemma4", "gemma4.attention.head_count_kv", {2, 2, 2, 2, 2, 1})
              .find("head_count_kv: differs") != std::string::npos);
    CHECK(error("gemma4", "gemma4.attention.head_count_kv", {4, 3, 2, 2, 2, 2}).find("does not divide") !=
          std::string::npos);
    CHECK(
        error("gemma4", "gemma4.feed_forward_length", {40, 40, 40, 80, 80, 81}).find("feed_forward_length") !=
        std::string::npos);
    CHECK(EditedModel(smallest("gemma4")).set("gemma4.attention.shared_kv_layers", 5u).error() != "");
    CHECK(
        EditedModel(smallest("gemma4-31b")).without_tensor("rope_freqs.weight").error().find("rope_freqs") !=
        std::string::npos);
}
