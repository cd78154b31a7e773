#include "engine/model/unread_keys.h"

#include <algorithm>
#include <optional>

#include "gguf/printable.h"

namespace runnel::model {
namespace {

// Keys that change what the model computes, except with their neutral values (one or two). A name that ends in
// a dot is a prefix.
struct Mathematical {
    std::string_view name;
    double neutral = 0, also_neutral = 0;
};
constexpr Mathematical kMathematical[] = {
    {"activation."},
    {"activation_sparsity_scale"},
    {"altup."},
    {"attention.causal", 1, 1},
    {"attention.clamp_kqv"},
    {"attention.compress_ratios"},
    {"attention.indexer."},
    {"attention.max_alibi_bias"},
    {"attention.output_scale", 0, 1},
    {"attention.rope_pattern", 1, 1},
    {"attention.scale"},
    {"attention.shared_kv_layers"},
    {"attention.temperature_scale"},
    {"attention.value_scale", 0, 1},
    {"attn_logit_softcapping"},
    {"attn_res."},
    {"embedding_length_per_layer_input"},
    {"embedding_scale", 0, 1},
    {"expert_latent_length"},
    {"final_logit_softcapping"},
    {"full_attention_interval", 0, 1},
    {"hash_layer_count"},
    {"hyper_connection."},
    {"interleave_moe_layer_step", 0, 1},
    {"kda."},
    {"logit_scale", 0, 1},
    {"moe_latent_size"},
    {"num_loops", 0, 1},
    {"ple."},
    {"residual_scale", 0, 1},
    {"rope.scaling.alpha", 0, 1},
    {"router_logit_softcapping"},
    {"swiglu_clamp_exp"},
    {"swiglu_clamp_shexp"},
    {"swin_norm"},
};

// Keys to ignore: they repeat what tensors show, do not concern text, or only qualify other keys.
constexpr std::string_view kHarmless[] = {
    "adapters.",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "audio.",
    "classifier.",
    "decoder_start_token_id",
    "deepstack_mapping",
    "embedding_length_out",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",  // the family decides
    "leading_dense_block_count",
    "mm.",
    "n_deepstack_layers",
    "pooling_type",
    "projector.",
    // Builder::rope() reads these; families without RoPE do not call it.
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.",
    "skip_loop_final_norm",
    "tensor_data_layout",
    "use_parallel_residual",  // tensors show it
    "vision.",
    "vocab_size",
};

bool matches(std::string_view name, std::string_view pattern) {
    return pattern.ends_with('.') ? name.starts_with(pattern) : name == pattern;
}

// The numbers of a scalar or an array; nullopt if it holds anything else.
std::optional<std::vector<double>> numbers(const gguf::Value &value) {
    std::vector<double> all;
    const auto push = [&](const gguf::Value &one) {
        const std::optional<bool> flag = one.as_bool();
        const std::optional<double> number = flag ? std::optional<double>(*flag) : one.as_float();
        if (number) all.push_back(*number);
        return number.has_value();
    };
    if (value.type() != gguf::ValueType::Array) return push(value) ? std::optional(all) : std::nullopt;
    for (const gguf::Value &entry : value.elements())
        if (!push(entry)) return std::nullopt;
    return all;
}

bool is_neutral(const Mathematical &key, const gguf::Value &value) {
    const auto all = numbers(value);
    return all && std::all_of(all->begin(), all->end(), [&](double number) {
               return number == key.neutral || number == key.also_neutral;
           });
}

// M-RoPE with one section equals plain RoPE.
bool has_one_section(const gguf::Value &value) {
    const auto sections = numbers(value);
    return sections && (sections->size() < 2 || (*sections)[0] == 0 || (*sections)[1] == 0);
}

class Check {
  public:
    explicit Check(const Metadata &metadata) : m_(metadata) {}

    // Returns a note, or an empty string.
    std::string check_key(std::string_view name, const gguf::Value &value) const {
        for (const Mathematical &key : kMathematical)
            if (matches(name, key.name)) {
                if (!is_neutral(key, value)) refuse(name);
                return {};
            }
        if (name == "rope.dimension_sections") {
            if (!has_one_section(value)) refuse(name);
            return {};
        }
        if (name.ends_with("_swa")) {  // neutral without windows, or if equal to the plain key
            if (!same_as_plain(name, value) && window() != 0) refuse(name);
            return {};
        }
        if (name == "attention.sliding_window" && window() == 0) return {};
        const bool of_experts =
            name.starts_with("expert_") && m_.integer("expert_count", 0, INT32_MAX).value_or(0) == 0;
        if (of_experts || std::any_of(std::begin(kHarmless), std::end(kHarmless),
                                      [&](std::string_view known) { return matches(name, known); }))
            return {};
        return gguf::printable(m_.architecture()) + "." + gguf::printable(name) +
               ": unknown to this version; if it changes the computation, the answers are wrong";
    }

  private:
    [[noreturn]] void refuse(std::string_view name) const {
        m_.fail(gguf::printable(name), "changes what the model computes, and is not supported for " +
                                           gguf::printable(m_.architecture()));
    }
    bool same_as_plain(std::string_view name, const gguf::Value &value) const {
        const gguf::Value *plain = m_.find(name.substr(0, name.size() - 4));
        return plain && numbers(*plain) && numbers(*plain) == numbers(value);
    }
    // The window in tokens; 0: none, or one that covers the whole context.
    int64_t window() const {
        const int64_t cells = m_.integer("attention.sliding_window", INT32_MIN, UINT32_MAX).value_or(0);
        return cells < 1 || cells >= m_.integer("context_length", 0, INT32_MAX).value_or(0) ? 0 : cells;
    }

    const Metadata &m_;
};

}  // namespace

std::vector<std::string> check_unread_keys(const Metadata &metadata) {
    std::vector<std::string> notes;
    const std::vector<Metadata::Entry> unread = metadata.unread();
    const Check check(metadata);
    for (const auto &[name, value] : unread)
        if (std::string note = check.check_key(name, *value); !note.empty()) notes.push_back(std::move(note));
    return notes;
}

}  // namespace runnel::model
