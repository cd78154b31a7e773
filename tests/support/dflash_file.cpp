#include "tests/support/dflash_file.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "gguf/writer.h"

namespace runnel::testing {

DFlashFile::DFlashFile(const gguf::File &target, DFlashShape shape)
    : HeadTensors(shape.seed), target_(&target), shape_(std::move(shape)) {
    const int64_t width = number_of(target, "embedding_length"), vocab = vocab_of(target);
    const auto layers = static_cast<int32_t>(number_of(target, "block_count"));
    if (shape_.ff == 0) shape_.ff = 2 * width;
    if (shape_.head_dim == 0) shape_.head_dim = width / shape_.heads;
    if (shape_.taps.empty()) shape_.taps = {1, layers / 2, std::max(0, layers - 2)};
    const int64_t q = shape_.heads * shape_.head_dim, kv = shape_.kv_heads * shape_.head_dim;
    numbers = {{"block_count", static_cast<uint32_t>(shape_.layers)},
               {"context_length", static_cast<uint32_t>(number_of(target, "context_length"))},
               {"embedding_length", static_cast<uint32_t>(width)},
               {"feed_forward_length", static_cast<uint32_t>(shape_.ff)},
               {"attention.head_count", static_cast<uint32_t>(shape_.heads)},
               {"attention.head_count_kv", static_cast<uint32_t>(shape_.kv_heads)},
               {"attention.key_length", static_cast<uint32_t>(shape_.head_dim)},
               {"attention.value_length", static_cast<uint32_t>(shape_.head_dim)},
               {"rope.dimension_count", static_cast<uint32_t>(shape_.head_dim)},
               {"block_size", shape_.block}};
    if (shape_.window > 0) numbers["attention.sliding_window"] = static_cast<uint32_t>(shape_.window);
    add_matrix("fc", static_cast<int64_t>(shape_.taps.size()) * width, width, 1);
    for (const char *norm : {"enc.output_norm", "output_norm"})
        add(norm + std::string(".weight"), {width}, 1, 0.2f);
    for (int64_t i = 0; i < shape_.layers; ++i) {
        const std::string prefix = "blk." + std::to_string(i) + ".";
        for (const char *norm : {"attn_norm", "ffn_norm"}) add(prefix + norm + ".weight", {width}, 1, 0.2f);
        for (const char *norm : {"attn_q_norm", "attn_k_norm"})
            add(prefix + norm + ".weight", {shape_.head_dim}, 1, 0.2f);
        add_matrix(prefix + "attn_q", width, q, 1.2f);
        add_matrix(prefix + "attn_k", width, kv, 1.2f);
        if (shape_.values) add_matrix(prefix + "attn_v", width, kv, 1);
        add_matrix(prefix + "attn_output", q, width, 1);
        add_matrix(prefix + "ffn_gate", width, shape_.ff, 1);
        add_matrix(prefix + "ffn_up", width, shape_.ff, 1);
        add_matrix(prefix + "ffn_down", shape_.ff, width, 1);
        if (shape_.post_norms)
            for (const char *norm : {"post_attention_norm", "post_ffw_norm"})
                add(prefix + norm + ".weight", {width}, 1, 0.2f);
        if (shape_.scales) add(prefix + "layer_output_scale.weight", {1}, 0.9f, 0.05f);
        if (shape_.sinks) add(prefix + "attn_sinks.weight", {shape_.heads}, 0, 1);
    }
    if (shape_.own_embedding) add_matrix("token_embd", width, vocab, std::sqrt(static_cast<float>(width)));
    if (shape_.own_output || shape_.rows > 0)
        add_matrix("output", width, shape_.rows > 0 ? shape_.rows : vocab, 2.5f);
    if (shape_.rows > 0) {  // a random choice of tokens, in a random order
        tokens.resize(static_cast<size_t>(vocab));
        std::iota(tokens.begin(), tokens.end(), 0);
        for (size_t i = tokens.size(); i > 1; --i) std::swap(tokens[i - 1], tokens[random_.below(i)]);
        tokens.resize(static_cast<size_t>(shape_.rows));
    }
}

void DFlashFile::write(const std::filesystem::path &path, const gguf::OutputOptions &options) const {
    gguf::Writer writer;
    writer.add("general.architecture", "dflash");
    for (const auto &[key, value] : numbers) writer.add("dflash." + key, value);
    writer.add("dflash.attention.layer_norm_rms_epsilon", 1e-6f);
    writer.add("dflash.rope.freq_base", 1e5f);
    writer.add("dflash.target_layers", std::span<const int32_t>(shape_.taps));
    if (shape_.causal) writer.add("dflash.attention.causal", true);
    if (shape_.gelu) writer.add("dflash.hidden_activation", "gelu");
    if (shape_.transforms)
        for (const auto &[key, value] :
             {std::pair("embedding_scale", 1.5f), {"attention.scale", 0.3f}, {"attention.value_scale", 0.7f}})
            writer.add(std::string("dflash.") + key, value);
    if (shape_.window > 0) {
        gguf::Array windowed(gguf::ValueType::Bool);
        for (int64_t i = 0; i < shape_.layers; ++i) windowed.push(i % 2 == 0);
        writer.add("dflash.attention.sliding_window_pattern", windowed);
    }
    for (const auto &[key, value] : target_->metadata())
        if (key.starts_with("tokenizer.") && key != "tokenizer.ggml.mask_token_id") writer.add(key, value);
    writer.add("tokenizer.ggml.mask_token_id", static_cast<uint32_t>(shape_.mask));
    describe(writer, shape_.type);
    if (!tokens.empty()) writer.add_tensor("d2t", gguf::Type::I64, {static_cast<int64_t>(tokens.size())});
    writer.start(path, options);
    HeadTensors::write(writer, shape_.type);
    writer.write(std::as_bytes(std::span(tokens)));
    writer.finish();
}

}  // namespace runnel::testing
