#include "tests/support/model_metadata.h"

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "tests/support/model_families.h"

namespace runnel::testing {
namespace {

// llama.cpp's file type number for the format, or -1.
int file_type(const std::string &type) {
    constexpr std::pair<const char *, int> kTypes[] = {
        {"F32", 0},     {"F16", 1},      {"Q4_0", 2},   {"Q4_1", 3},    {"Q8_0", 7},    {"Q5_0", 8},
        {"Q5_1", 9},    {"Q2_K", 10},    {"Q3_K", 11},  {"Q3_K_M", 12}, {"Q4_K", 14},   {"Q4_K_M", 15},
        {"Q5_K", 16},   {"Q5_K_M", 17},  {"Q6_K", 18},  {"IQ4_NL", 25}, {"IQ4_XS", 30}, {"BF16", 32},
        {"TQ1_0", 36},  {"TQ2_0", 37},   {"MXFP4", 38}, {"NVFP4", 39},  {"Q1_0", 40},   {"Q2_0", 41},
        {"PQ2_0", 141}, {"PTQ1_0", 143},
    };
    for (const auto &[name, number] : kTypes)
        if (type == name) return number;
    return -1;
}

using AddSize = std::function<void(const std::string &, int64_t)>;

void add_expert_metadata(const ModelShape &shape, const ExpertFiles &files, const AddSize &add) {
    const ExpertShape &e = shape.experts;
    add("expert_count", e.count);
    add("expert_used_count", e.used);
    if (files.width_key) add("expert_feed_forward_length", e.ff);
    if (files.shared != ExpertFiles::Shared::None) add("expert_shared_feed_forward_length", e.ff);
    if (files.shared_count) add("expert_shared_count", 1);
    if (e.leading_dense > 0 || files.shared == ExpertFiles::Shared::Plain)
        add("leading_dense_block_count", e.leading_dense);
    if (e.groups > 1) {
        add("expert_group_count", e.groups);
        add("expert_group_used_count", e.groups_used);
    }
}

// Files with attn_kv_b give the size of a head; later ones also the sizes in the cache.
void add_latent_metadata(const ModelShape &shape, const LatentFiles &files, bool recurrent,
                         const AddSize &add) {
    if (files.low_rank_q) add("attention.q_lora_rank", shape.latent_q_rank);
    add("attention.kv_lora_rank", shape.latent_rank);
    if (!recurrent) add("attention.head_count_kv", files.joint ? shape.heads : 1);
    const int64_t key = shape.head_dim + shape.latent_rotated;
    add("attention.key_length", files.joint ? key : shape.latent_rank + shape.latent_rotated);
    add("attention.value_length", files.joint ? shape.head_dim : shape.latent_rank);
    if (files.joint) return;
    add("attention.key_length_mla", key);
    add("attention.value_length_mla", shape.head_dim);
    if (!files.indexer) return;
    add("attention.indexer.head_count", shape.indexer_heads);
    add("attention.indexer.key_length", kIndexerHead);
    add("attention.indexer.top_k", shape.indexer_top_k);
}

// Sizes that differ between layers.
void add_gemma4_metadata(const ModelShape &shape, const Gemma4Files &files, const std::string &arch,
                         gguf::Writer &writer) {
    const auto key = [&](const std::string &name) { return arch + "." + name; };
    const auto add = [&](const std::string &name, int64_t n) {
        writer.add(key(name), static_cast<uint32_t>(n));
    };
    gguf::Array windowed(gguf::ValueType::Bool), kv_heads(gguf::ValueType::I32), hidden(gguf::ValueType::I32);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
        windowed.push(!files.full(layer));
        kv_heads.push(static_cast<int32_t>(files.kv_heads(layer, shape.kv_heads)));
        hidden.push(static_cast<int32_t>(files.hidden(layer, shape.layers, shape.ff)));
    }
    writer.add(key("attention.sliding_window_pattern"), windowed);
    if (files.keys_are_values)
        writer.add(key("attention.head_count_kv"), kv_heads);
    else
        add("attention.head_count_kv", shape.kv_heads);
    if (files.wide_shared)
        writer.add(key("feed_forward_length"), hidden);
    else
        add("feed_forward_length", shape.ff);
    add("attention.shared_kv_layers", files.shared_kv);
    add("embedding_length_per_layer_input", files.own_embedding);
    for (const char *name : {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
        add(name, 2 * shape.head_dim);
        add(name + std::string("_swa"), shape.head_dim);
    }
    writer.add(key("rope.freq_base"), static_cast<float>(100 * shape.rope_freq_base));
    writer.add(key("rope.freq_base_swa"), static_cast<float>(shape.rope_freq_base));
}

void add_gemma3n_metadata(const ModelShape &shape, const Gemma3nFiles &files, const std::string &arch,
                          gguf::Writer &writer) {
    gguf::Array windowed(gguf::ValueType::Bool), sparsity(gguf::ValueType::F32);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
        windowed.push(!files.full(layer));
        sparsity.push(files.sparse(layer, shape.layers) ? 1.6448534f : -INFINITY);
    }
    writer.add(arch + ".attention.sliding_window_pattern", windowed);
    writer.add(arch + ".activation_sparsity_scale", sparsity);
    writer.add(arch + ".attention.shared_kv_layers", static_cast<uint32_t>(Gemma3nFiles::kSharedKeys));
    writer.add(arch + ".embedding_length_per_layer_input",
               static_cast<uint32_t>(Gemma3nFiles::kOwnEmbedding));
}

void add_qwen4_metadata(const ModelShape &shape, const RecurrentFiles &layers, const std::string &arch,
                        const AddSize &add, gguf::Writer &writer) {
    add("hyper_connection.count", Qwen4Files::kStreams);
    add("hyper_connection.low_rank", Qwen4Files::kRank);
    add("attention.indexer.head_count", shape.indexer_heads);
    add("attention.indexer.key_length", kIndexerHead);
    add("attention.indexer.top_k", shape.indexer_top_k);
    gguf::Array ratios(gguf::ValueType::U32), gram_layers(gguf::ValueType::U32),
        multipliers(gguf::ValueType::U64), offsets(gguf::ValueType::U64), sizes(gguf::ValueType::U64);
    for (int64_t layer = 0; layer < shape.layers; ++layer)
        ratios.push(static_cast<uint32_t>(layers.attends(layer) ? Qwen4Files::kBlock : 0));
    writer.add(arch + ".attention.compress_ratios", ratios);
    add("embedding_length_per_layer_input", shape.width / Qwen4Files::kHeads);
    gram_layers.push(static_cast<uint32_t>(Qwen4Files::kGramLayer));
    writer.add(arch + ".ple.layers", gram_layers);
    add("ple.ngram_size", Qwen4Files::kGram);
    add("ple.heads_per_ngram", Qwen4Files::kHeadsPerGram);
    add("ple.conv_kernel", Qwen4Files::kTaps);
    add("ple.eos_token_id", 2);
    for (uint64_t i = 0; i < Qwen4Files::kGram; ++i)
        multipliers.push(uint64_t{35'184'372'088'831} + 2 * i * i);
    for (uint64_t head = 0; head < Qwen4Files::kHeads; ++head) {
        offsets.push(head * Qwen4Files::kRowsPerHead);
        sizes.push(uint64_t{Qwen4Files::kRowsPerHead} - head);
    }
    writer.add(arch + ".ple.layer_multipliers", multipliers);
    writer.add(arch + ".ple.head_offsets", offsets);
    writer.add(arch + ".ple.head_vocab_sizes", sizes);
}

void add_deepseek4_metadata(const ModelShape &shape, const std::string &arch, const AddSize &add,
                            gguf::Writer &writer) {
    add("attention.head_count_kv", 1);
    add("attention.key_length", shape.head_dim);
    add("attention.value_length", shape.head_dim);
    add("attention.q_lora_rank", shape.latent_q_rank);
    add("attention.output_group_count", DeepSeek4Files::kGroups);
    add("attention.output_lora_rank", DeepSeek4Files::kRank);
    writer.add(arch + ".attention.compress_rope_freq_base", static_cast<float>(16 * shape.rope_freq_base));
    gguf::Array ratios(gguf::ValueType::U32);
    for (int64_t layer = 0; layer < shape.layers + (shape.draft_block ? 1 : 0); ++layer)
        ratios.push(static_cast<uint32_t>(DeepSeek4Files::ratio(layer)));
    writer.add(arch + ".attention.compress_ratios", ratios);
    add("attention.indexer.head_count", shape.indexer_heads);
    add("attention.indexer.key_length", kIndexerHead);
    add("attention.indexer.top_k", shape.indexer_top_k / DeepSeek4Files::ratio(1));
    add("hyper_connection.count", DeepSeek4Files::kStreams);
    add("hyper_connection.sinkhorn_iterations", DeepSeek4Files::kIterations);
    writer.add(arch + ".hyper_connection.epsilon", 1e-6f);
    add("hash_layer_count", DeepSeek4Files::kHashLayers);
}

void add_value(gguf::Writer &writer, const std::string &key,
               const decltype(FamilyFiles::Key::second) &value) {
    if (const auto *numbers = std::get_if<std::vector<int32_t>>(&value)) {
        gguf::Array array(gguf::ValueType::I32);
        for (const int32_t number : *numbers) array.push(number);
        return writer.add(key, array);
    }
    if (const auto *real = std::get_if<float>(&value)) writer.add(key, *real);
    if (const auto *number = std::get_if<uint32_t>(&value)) writer.add(key, *number);
    if (const auto *flag = std::get_if<bool>(&value)) writer.add(key, *flag);
    if (const auto *text = std::get_if<std::string>(&value)) writer.add(key, *text);
}

// Arrays with an entry for every layer.
void add_arrays(const ModelShape &shape, const FamilyFiles &family, gguf::Writer &writer) {
    const auto pattern = [&](const std::string &name, int64_t period, bool last) {
        if (period == 0) return;
        gguf::Array flags(gguf::ValueType::Bool);
        for (int64_t i = 0; i < shape.layers; ++i) flags.push(((i + 1) % period == 0) == last);
        writer.add(family.arch + "." + name, flags);
    };
    pattern("attention.sliding_window_pattern", family.window_period, false);
    pattern("attention.rope_pattern", family.rope_period, true);
    for (const auto &[name, value] : family.keys_by_layer) {
        gguf::Array reals(gguf::ValueType::F32);
        for (int64_t i = 0; i < shape.layers + (shape.draft_block ? 1 : 0); ++i) reals.push(value);
        writer.add(name, reals);
    }
    if (shape.indexer_period > 1) {
        gguf::Array own(gguf::ValueType::Bool);
        for (int64_t i = 0; i < shape.layers; ++i) own.push(i % shape.indexer_period == 0);
        writer.add(family.arch + ".attention.indexer.types", own);
    }
    if (!family.layer_sizes) return;
    gguf::Array heads(gguf::ValueType::I32), kv_heads(gguf::ValueType::I32), ff(gguf::ValueType::I32);
    for (int64_t i = 0; i < shape.layers; ++i) {
        const LayerSizes sizes = family.layer_sizes({shape.heads, shape.kv_heads, shape.ff}, i);
        heads.push(static_cast<int32_t>(sizes.heads));
        kv_heads.push(static_cast<int32_t>(sizes.kv_heads));
        ff.push(static_cast<int32_t>(sizes.ff));
    }
    writer.add(family.arch + ".attention.head_count", heads);
    writer.add(family.arch + ".attention.head_count_kv", kv_heads);
    writer.add(family.arch + ".feed_forward_length", ff);
}

}  // namespace

void add_metadata(const ModelShape &shape, gguf::Writer &writer) {
    const FamilyFiles &family = *find_family_files(shape.arch);
    const auto key = [&](const std::string &name) { return family.arch + "." + name; };
    const auto add_size = [&](const std::string &name, int64_t n) {
        writer.add(key(name), static_cast<uint32_t>(n));
    };
    writer.add("general.architecture", family.arch);
    writer.add("general.name", "random weights");  // peers change behavior for some model names
    const int number = file_type(shape.dequantized ? "F32" : shape.type);
    if (number >= 0) writer.add("general.file_type", static_cast<uint32_t>(number));
    if (number > 1) writer.add("general.quantization_version", 2u);
    add_size("context_length", shape.context);
    add_size("embedding_length", shape.width);
    add_size("block_count", shape.layers + (shape.draft_block ? 1 : 0));
    if (shape.draft_block) add_size("nextn_predict_layers", 1);
    const bool same = !family.layer_sizes;
    if (!family.gemma4 && !family.recurrent && same)
        add_size("feed_forward_length", family.double_ff_key ? 2 * shape.ff : shape.ff);
    if (!family.recurrent && same) add_size("attention.head_count", shape.heads);
    add_arrays(shape, family, writer);
    const bool recurrent = family.recurrent.has_value();
    if (recurrent)
        add_recurrent_metadata(shape, *family.recurrent, family.arch, family.latent.has_value(), writer);
    if (family.latent) {
        add_latent_metadata(shape, *family.latent, recurrent, add_size);
    } else if (family.deepseek4) {
        add_deepseek4_metadata(shape, family.arch, add_size, writer);
    } else if (recurrent) {
        // Above.
    } else if (family.gemma4) {
        add_gemma4_metadata(shape, *family.gemma4, family.arch, writer);
    } else {
        if (same) add_size("attention.head_count_kv", shape.kv_heads);
        add_size("attention.key_length", shape.head_dim);
        add_size("attention.value_length", family.narrow_values ? shape.head_dim / 2 : shape.head_dim);
    }
    if (family.block_indexer) {
        add_size("attention.indexer.head_count", shape.kv_heads);
        add_size("attention.indexer.key_length", kIndexerHead);
        add_size("attention.indexer.top_k", shape.indexer_top_k / shape.indexer_block);
        add_size("attention.indexer.block_size", shape.indexer_block);
        add_size("attention.indexer.local_blocks", shape.indexer_local);
    }
    if (family.qwen4) add_qwen4_metadata(shape, *family.recurrent, family.arch, add_size, writer);
    if (family.gemma3n) add_gemma3n_metadata(shape, *family.gemma3n, family.arch, writer);
    if (family.experts) add_expert_metadata(shape, *family.experts, add_size);
    add_size("vocab_size", shape.vocab);
    writer.add(key(family.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
               1e-5f);
    if (family.rope && !family.gemma4) {
        add_size("rope.dimension_count",
                 family.latent ? shape.latent_rotated : shape.head_dim / family.rope_divisor);
        writer.add(key("rope.freq_base"), static_cast<float>(shape.rope_freq_base));
        if (family.wide_window_rope) add_size("rope.dimension_count_swa", shape.head_dim);
    }
    for (const auto &[name, value] : family.keys)
        if (shape.sliding_window == 0 || name != "attention.sliding_window")
            add_value(writer, key(name), value);
    if (shape.sliding_window > 0) add_size("attention.sliding_window", shape.sliding_window);
    if (shape.rope_scaling == "longrope") {
        writer.add(key("rope.scaling.type"), shape.rope_scaling);
        writer.add(key("rope.scaling.attn_factor"), 1.1f);
        add_size("rope.scaling.original_context_length", shape.original_context);
    }
    if (shape.rope_scaling == "linear" || shape.rope_scaling == "yarn") {
        writer.add(key("rope.scaling.type"), shape.rope_scaling);
        writer.add(key("rope.scaling.factor"), static_cast<float>(shape.rope_factor));
        add_size("rope.scaling.original_context_length", shape.original_context);
    }
}

}  // namespace runnel::testing
