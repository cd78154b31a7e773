#include "tests/support/assistant_file.h"

#include <cmath>

#include "gguf/writer.h"

namespace runnel::testing {

AssistantFile::AssistantFile(const gguf::File &target, AssistantShape shape)
    : HeadTensors(shape.seed), target_(&target), shape_(shape) {
    const int64_t width = shape_.width, wide = number_of(target, "embedding_length"),
                  vocab = vocab_of(target), head_of_full = number_of(target, "attention.key_length"),
                  head_of_window = number_of(target, "attention.key_length_swa");
    // The target's last layer is full, the one before it has a window.
    const gguf::Value *all = target.find("gemma4.attention.head_count_kv");
    const bool differ = all && all->type() == gguf::ValueType::Array;
    const std::vector<int64_t> each = differ ? all->as_ints() : std::vector<int64_t>();
    const auto heads_of = [&](size_t from_end) {
        return static_cast<int32_t>(differ ? each.at(each.size() - from_end)
                                           : number_of(target, "attention.head_count_kv"));
    };
    if (shape_.heads == 0) shape_.heads = int64_t{2} * heads_of(2);
    for (int64_t i = 0; i < shape_.layers; ++i) {
        windowed.push_back(i + 1 < shape_.layers);
        kv_heads.push_back(heads_of(windowed.back() ? 2 : 1));
        hidden.push_back(
            static_cast<int32_t>(shape_.wide_full && !windowed.back() ? 2 * shape_.ff : shape_.ff));
    }
    numbers = {
        {"block_count", static_cast<uint32_t>(shape_.layers)},
        {"nextn_predict_layers", static_cast<uint32_t>(shape_.layers)},
        {"attention.shared_kv_layers", static_cast<uint32_t>(shape_.layers)},
        {"context_length", static_cast<uint32_t>(number_of(target, "context_length"))},
        {"embedding_length", static_cast<uint32_t>(width)},
        {"embedding_length_out", static_cast<uint32_t>(wide)},
        {"attention.head_count", static_cast<uint32_t>(shape_.heads)},
        {"attention.sliding_window", static_cast<uint32_t>(number_of(target, "attention.sliding_window"))}};
    for (const char *key : {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
        numbers[key] = static_cast<uint32_t>(head_of_full);
        numbers[key + std::string("_swa")] = static_cast<uint32_t>(head_of_window);
    }
    add_matrix("token_embd", width, vocab, 2.5f);
    add("output_norm.weight", {width}, 1, 0.2f);
    add("rope_freqs.weight", {head_of_full / 2}, 1, 0);
    for (size_t i = 0; i < tensors.at("rope_freqs.weight").all.size(); ++i)
        if (i % 4 != 0) tensors.at("rope_freqs.weight").all[i] = 1e30f;
    add_matrix("nextn.pre_projection", 2 * wide, width, 1);
    add_matrix("nextn.post_projection", width, wide, 1);
    for (int64_t i = 0; i < shape_.layers; ++i) {
        const std::string prefix = "blk." + std::to_string(i) + ".";
        const int64_t head = windowed[static_cast<size_t>(i)] ? head_of_window : head_of_full,
                      ff = hidden[static_cast<size_t>(i)];
        for (const char *norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
            add(prefix + norm + ".weight", {width}, 1, 0.2f);
        add(prefix + "attn_q_norm.weight", {head}, 1, 0.2f);
        add(prefix + "layer_output_scale.weight", {1}, 0.9f, 0.05f);
        add_matrix(prefix + "attn_q", width, shape_.heads * head, 1);
        add_matrix(prefix + "attn_output", shape_.heads * head, width, 1);
        add_matrix(prefix + "ffn_gate", width, ff, 1);
        add_matrix(prefix + "ffn_up", width, ff, 1);
        add_matrix(prefix + "ffn_down", ff, width, 1);
    }
}

void AssistantFile::write(const std::filesystem::path &path, const gguf::OutputOptions &options) const {
    const std::string arch = "gemma4-assistant";
    gguf::Writer writer;
    writer.add("general.architecture", arch);
    for (const auto &[key, value] : numbers) writer.add(arch + "." + key, value);
    writer.add(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
    writer.add(arch + ".rope.freq_base", 1e6f);
    writer.add(arch + ".rope.freq_base_swa", 1e4f);
    writer.add(arch + ".embedding_length_per_layer_input", uint32_t{16});  // left by the converter
    if (shape_.softcap > 0) writer.add(arch + ".final_logit_softcapping", shape_.softcap);
    gguf::Array pattern(gguf::ValueType::Bool), heads(gguf::ValueType::I32), widths(gguf::ValueType::I32);
    for (size_t i = 0; i < windowed.size(); ++i)
        pattern.push(windowed[i]), heads.push(kv_heads[i]), widths.push(hidden[i]);
    writer.add(arch + ".attention.sliding_window_pattern", pattern);
    writer.add(arch + ".attention.head_count_kv", heads);
    writer.add(arch + ".feed_forward_length", widths);
    for (const auto &[key, value] : target_->metadata())
        if (key.starts_with("tokenizer.")) writer.add(key, value);
    describe(writer, shape_.type);
    writer.start(path, options);
    HeadTensors::write(writer, shape_.type);
    writer.finish();
}

}  // namespace runnel::testing
