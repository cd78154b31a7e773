#include "tests/support/eagle_head.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "gguf/writer.h"

namespace runnel::testing {

EagleHead::EagleHead(const gguf::File &target, HeadShape shape)
    : HeadTensors(shape.seed), target_(&target), shape_(shape) {
    const int64_t target_width = number_of(target, "embedding_length"),
                  layers = number_of(target, "block_count") - number_of(target, "nextn_predict_layers", 0);
    const int64_t vocab = vocab_of(target);
    if (shape_.width == 0) shape_.width = target_width;
    if (shape_.ff == 0) shape_.ff = 2 * shape_.width;
    if (shape_.head_dim == 0) shape_.head_dim = shape_.width / shape_.heads;
    const int64_t defaults[] = {std::min<int64_t>(2, layers), layers / 2, std::max<int64_t>(0, layers - 3)};
    for (size_t i = 0; i < 3; ++i)
        target_layers.push_back(shape_.layers[i] < 0 ? static_cast<int32_t>(defaults[i]) : shape_.layers[i]);
    const int64_t width = shape_.width, q = shape_.heads * shape_.head_dim,
                  kv = shape_.kv_heads * shape_.head_dim;
    numbers = {{"block_count", 1},
               {"context_length", static_cast<uint32_t>(number_of(target, "context_length"))},
               {"embedding_length", static_cast<uint32_t>(width)},
               {"feed_forward_length", static_cast<uint32_t>(shape_.ff)},
               {"attention.head_count", static_cast<uint32_t>(shape_.heads)},
               {"attention.head_count_kv", static_cast<uint32_t>(shape_.kv_heads)},
               {"attention.key_length", static_cast<uint32_t>(shape_.head_dim)},
               {"attention.value_length", static_cast<uint32_t>(shape_.head_dim)},
               {"rope.dimension_count", static_cast<uint32_t>(shape_.head_dim)},
               {"target_hidden_size", static_cast<uint32_t>(target_width)}};
    add_matrix("fc", 3 * target_width, width, 1);
    if (shape_.norm_before_fc) add("enc.output_norm.weight", {3 * target_width}, 1, 0.2f);
    for (const char *norm : {"blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm"})
        add(norm + std::string(".weight"), {width}, 1, 0.2f);
    add_matrix("blk.0.attn_q", 2 * width, q, 1.2f);
    add_matrix("blk.0.attn_k", 2 * width, kv, 1.2f);
    add_matrix("blk.0.attn_v", 2 * width, kv, 1);
    add_matrix("blk.0.attn_output", q, width, 1);
    add_matrix("blk.0.ffn_gate", width, shape_.ff, 1);
    add_matrix("blk.0.ffn_up", width, shape_.ff, 1);
    add_matrix("blk.0.ffn_down", shape_.ff, width, 1);
    const bool fits = width == target_width;
    if (shape_.own_embedding || !fits) add_matrix("token_embd", width, vocab, std::sqrt(float(width)));
    if (shape_.own_output || !fits || shape_.rows > 0)
        add_matrix("output", width, shape_.rows > 0 ? shape_.rows : vocab, 2.5f);
    if (shape_.divisors) {
        add("rope_freqs.weight", {shape_.head_dim / 2}, 1, 0);
        for (float &divisor : tensors["rope_freqs.weight"].all) divisor = 1 + 3 * random_.uniform();
    }
    if (shape_.rows > 0) {  // a random choice of tokens, in a random order
        tokens.resize(static_cast<size_t>(vocab));
        std::iota(tokens.begin(), tokens.end(), 0);
        for (size_t i = tokens.size(); i > 1; --i) std::swap(tokens[i - 1], tokens[random_.below(i)]);
        tokens.resize(static_cast<size_t>(shape_.rows));
    }
}

void EagleHead::repeat_tap() {
    for (const char *name : {"fc.weight", "blk.0.attn_output.weight", "blk.0.ffn_down.weight"}) fill(name, 0);
    std::vector<float> &fc = tensors.at("fc.weight").all;
    const auto width = static_cast<size_t>(shape_.width);
    for (size_t i = 0; i < width; ++i) fc[i * 3 * width + i] = 1;
}

void EagleHead::obey_rule(const Values &output_norm) {
    for (const char *name : {"blk.0.attn_norm_2.weight", "blk.0.ffn_down.weight"}) fill(name, 0);
    fill("blk.0.attn_norm.weight", 1);
    tensors.at("output_norm.weight") = output_norm;
    const auto width = static_cast<size_t>(shape_.width);
    // The largest score is that of the same embedding: all of them have the same length.
    const float sharp = 30;
    for (const auto &[name, value] :
         {std::pair("blk.0.attn_q.weight", sharp), std::pair("blk.0.attn_k.weight", 1.0f),
          std::pair("blk.0.attn_v.weight", 1.0f)}) {
        fill(name, 0);
        for (size_t i = 0; i < width; ++i) tensors.at(name).all[i * 2 * width + i] = value;
    }
    fill("blk.0.attn_output.weight", 0);
    for (size_t i = 0; i < width; ++i) tensors.at("blk.0.attn_output.weight").all[i * width + i] = 1;
}

void EagleHead::write(const std::filesystem::path &path, const gguf::OutputOptions &options) const {
    gguf::Writer writer;
    writer.add("general.architecture", "eagle3");
    for (const auto &[key, value] : numbers) writer.add("eagle3." + key, value);
    writer.add("eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
    writer.add("eagle3.rope.freq_base", static_cast<float>(shape_.rope_freq_base));
    writer.add("eagle3.target_layers", std::span<const int32_t>(target_layers));
    writer.add("eagle3.norm_before_residual", shape_.norm_before_residual);
    writer.add("eagle3.norm_before_fc", shape_.norm_before_fc);
    for (const auto &[key, value] : target_->metadata())
        if (key.starts_with("tokenizer.")) writer.add(key, value);
    describe(writer, shape_.type);
    if (!tokens.empty()) writer.add_tensor("d2t", gguf::Type::I64, {static_cast<int64_t>(tokens.size())});
    writer.start(path, options);
    HeadTensors::write(writer, shape_.type);
    writer.write(std::as_bytes(std::span(tokens)));
    writer.finish();
}

gguf::File EagleHead::write_and_open(const std::filesystem::path &path) const {
    std::filesystem::remove(path);  // a file that this process has read must not be overwritten
    write(path);
    return gguf::File::open(path);
}

}  // namespace runnel::testing
