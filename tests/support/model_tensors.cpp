#include "tests/support/model_tensors.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "tests/support/model_families.h"

namespace runnel::testing {
namespace {

using gguf::Type;

enum class Role { Norm, Plain, Embedding, Output, AttentionV, AttentionOutput, FfnDown };

// The layers to which llama.cpp's mixes give more bits: the first and last eighth and every third between.
bool more_bits(int64_t layer, int64_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

Type mixed(const ModelShape &shape, Role role, int64_t layer) {
    const bool more = more_bits(layer, shape.layers);
    const bool sensitive = role == Role::AttentionV || role == Role::FfnDown;
    if (shape.type == "Q5_K_M") return sensitive && more ? Type::Q6_K : Type::Q5_K;
    if (shape.type == "Q4_K_M") return sensitive && more ? Type::Q6_K : Type::Q4_K;
    if (shape.type != "Q3_K_M") return parse_type(shape.type);
    if (role == Role::AttentionV) return layer < 2 ? Type::Q5_K : Type::Q4_K;
    if (role == Role::FfnDown) return layer < shape.layers / 16 ? Type::Q5_K : more ? Type::Q4_K : Type::Q3_K;
    return role == Role::AttentionOutput ? Type::Q4_K : Type::Q3_K;
}

// The format of a matrix whose rows are not whole blocks of `type`.
Type fitting(Type type, int64_t row) {
    if (row % gguf::traits(type).block_size == 0) return type;
    if (row % 32 != 0) return Type::F16;
    switch (type) {
        case Type::Q4_K:
            return Type::Q5_0;
        case Type::Q5_K:
            return Type::Q5_1;
        case Type::Q6_K:
            return Type::Q8_0;
        case Type::TQ1_0:
        case Type::TQ2_0:
        case Type::Q1_0:
        case Type::Q2_0:
        case Type::PQ2_0:
        case Type::PTQ1_0:
            return Type::Q4_0;
        default:
            return Type::IQ4_NL;
    }
}

Type matrix_type(const ModelShape &shape, Role role, int64_t layer, int64_t row) {
    if (role == Role::Norm) return Type::F32;
    Type type = mixed(shape, role, layer);
    const bool output = role == Role::Output || (role == Role::Embedding && shape.tied);
    if (!shape.pure && gguf::traits(type).quantized) {
        if (output && type != Type::Q8_0)
            type = Type::Q6_K;
        else if (role == Role::Embedding &&
                 (type == Type::TQ1_0 || type == Type::TQ2_0 || type == Type::Q2_0 || type == Type::PQ2_0 ||
                  type == Type::PTQ1_0))
            type = Type::Q4_K;
    }
    return fitting(type, row);
}

// The divisors of the rotation frequencies with llama3 scaling: 1 for wavelengths that fit four times
// into the original context, the factor for those that do not fit, and a smooth transition between
// (Llama 3.1's reference code).
std::vector<float> llama3_divisors(const ModelShape &shape) {
    std::vector<float> divisors;
    const auto context = static_cast<double>(shape.original_context);
    for (int64_t i = 0; i < shape.head_dim; i += 2) {
        const double exponent = static_cast<double>(i) / static_cast<double>(shape.head_dim);
        const double turns = context / (2 * std::numbers::pi * std::pow(shape.rope_freq_base, exponent));
        const double smooth = std::clamp((turns - 1) / (4 - 1), 0.0, 1.0);
        divisors.push_back(static_cast<float>(1 / ((1 - smooth) / shape.rope_factor + smooth)));
    }
    return divisors;
}

// Factors of LongRoPE, growing from pair to pair up to `largest`.
std::vector<float> longrope_divisors(int64_t pairs, double largest) {
    std::vector<float> divisors;
    for (int64_t i = 0; i < pairs; ++i)
        divisors.push_back(
            static_cast<float>(1 + (largest - 1) * static_cast<double>(i + 1) / static_cast<double>(pairs)));
    return divisors;
}

class Planner {
  public:
    explicit Planner(const ModelShape &shape) : shape_(shape), family_(*find_family_files(shape.arch)) {}

    std::vector<PlannedTensor> plan() {
        // Tied embeddings determine the size of the logits, untied ones only that of the residual stream.
        matrix("token_embd", Role::Embedding, shape_.width, shape_.vocab,
               shape_.tied ? 2.5f : root(shape_.width));
        if (family_.positions)
            matrix("position_embd", Role::Norm, shape_.width, shape_.context, root(shape_.width));
        if (family_.embedding_norm) norm("token_embd_norm");
        plan_rope_factors();
        if (family_.gemma4) plan_gemma4_begin();
        if (family_.gemma3n) plan_gemma3n_begin();
        if (family_.qwen4) plan_gram_table();
        for (layer_ = 0; layer_ < shape_.layers; ++layer_) plan_layer();
        if (shape_.draft_block) plan_draft_block();
        layer_ = -1;
        if (family_.gemma3n) streams("altup_unembd_proj");
        if (family_.qwen4) plan_mixer("output_hc", false);
        if (family_.deepseek4) plan_streams("output_hc", DeepSeek4Files::kStreams, 1);
        if (family_.norms_have_weights && !family_.qwen4)
            norm(family_.recurrent ? family_.recurrent->final_norm : "output_norm");
        if (!shape_.tied) matrix("output", Role::Output, shape_.width, shape_.vocab, 2.5f);
        if (family_.output_bias) vector("output.bias", shape_.vocab, 0);
        return std::move(tensors_);
    }

  private:
    void plan_rope_factors() {
        const int64_t pairs = shape_.head_dim / family_.rope_divisor / 2;
        const auto factors = [&](const std::string &name, std::vector<float> values) {
            tensors_.push_back({name, {pairs}, Type::F32, 0, 0, std::move(values)});
        };
        if (shape_.rope_scaling == "llama3") factors("rope_freqs.weight", llama3_divisors(shape_));
        if (shape_.rope_scaling != "longrope") return;
        factors("rope_factors_short.weight", longrope_divisors(pairs, 1.5));
        factors("rope_factors_long.weight", longrope_divisors(pairs, 2 * shape_.rope_factor));
    }

    void plan_layer() {
        for (const std::string &name : family_.norms) {
            const bool absent =
                (sizes().heads == 0 && name == "attn_norm") || (sizes().ff == 0 && name == "ffn_norm");
            if (!absent) norm(name);
        }
        if (family_.recurrent) return plan_recurrent_layer();
        if (family_.latent)
            plan_latent_attention();
        else if (family_.deepseek4)
            plan_deepseek4();
        else if (family_.gemma4)
            plan_shared_keys(*family_.gemma4,
                             family_.gemma4->full(layer_) ? 2 * shape_.head_dim : shape_.head_dim,
                             family_.gemma4->kv_heads(layer_, shape_.kv_heads),
                             family_.gemma4->full(layer_) && family_.gemma4->keys_are_values);
        else if (family_.gemma3n)
            plan_shared_keys(*family_.gemma3n, shape_.head_dim, shape_.kv_heads, false);
        else
            plan_attention();
        if (family_.sinks) vector("attn_sinks.weight", sizes().heads, 1);
        const bool mixed = has_experts();
        if (mixed) plan_experts();
        if (mixed && family_.block_indexer) plan_index(shape_.kv_heads);
        if (!mixed || family_.gemma4 || family_.experts->dense_too) plan_feed_forward();
        if (family_.gemma4) plan_gemma4_end();
        if (family_.gemma3n) plan_gemma3n_end();
        if (family_.layer_factors) vector("layer_output_scale.weight", 1, 0.3f);
    }

    // In families with recurrent layers, the block is an attention layer.
    void plan_draft_block() {
        if (!family_.recurrent) {
            plan_layer();
        } else {
            for (const std::string &name : family_.norms) norm(name);
            plan_attention();
            has_experts() ? plan_experts() : plan_feed_forward();
        }
        matrix("nextn.eh_proj", Role::Plain, 2 * shape_.width, shape_.width, 1);
        for (const char *name : {"nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"}) norm(name);
    }

    void plan_recurrent_layer() {
        const RecurrentFiles &files = *family_.recurrent;
        if (files.mixes(layer_))
            for (const MixerTensor &t : mixer_tensors(shape_, files, layer_, residual())) {
                if (t.matrix)
                    matrix(t.name.substr(0, t.name.rfind('.')), Role::Plain, t.shape[0], t.shape[1], t.gain);
                else
                    tensors_.push_back({prefix() + t.name, t.shape, Type::F32, t.mean, t.sigma, {}});
            }
        if (files.attends(layer_)) family_.latent ? plan_latent_attention() : plan_attention();
        if (family_.qwen4) plan_qwen4(files.attends(layer_));
        if (files.attention_too) vector("ffn_norm", shape_.width, 1);  // its converter omits the suffix
        if (!files.has_ffn(layer_)) return;
        if (has_experts())
            plan_experts();
        else
            plan_feed_forward();
    }

    LayerSizes sizes() const {
        const LayerSizes all{shape_.heads, shape_.kv_heads, shape_.ff};
        return family_.layer_sizes ? family_.layer_sizes(all, layer_) : all;
    }

    bool has_experts() const {
        if (family_.recurrent && family_.recurrent->mixed_experts && layer_ % 2 == 0) return false;
        const int64_t step = shape_.arch == "llama4" ? 2 : 1;
        return family_.experts && layer_ >= shape_.experts.leading_dense && (layer_ + 1) % step == 0;
    }

    // Attention of Gemma 3n and 4, without keys and values in the last layers. Scores are not scaled: the norms of
    // heads keep them small.
    template <class Files>
    void plan_shared_keys(const Files &files, int64_t head, int64_t kv_heads, bool keys_are_values) {
        const int64_t width = shape_.width, q = shape_.heads * head, kv = kv_heads * head;
        const float of_norm = std::sqrt(1.5f / root(head));
        matrix("attn_q", Role::Plain, width, q, 1);
        vector("attn_q_norm.weight", head, of_norm);
        if (files.has_keys(layer_, shape_.layers)) {
            matrix("attn_k", Role::Plain, width, kv, 1);
            vector("attn_k_norm.weight", head, of_norm);
            if (!keys_are_values) matrix("attn_v", Role::AttentionV, width, kv, 1);
        }
        matrix("attn_output", Role::AttentionOutput, q, width, 1);
    }

    // Projections of all streams but the first.
    void streams(const std::string &name) {
        matrix(name, Role::Norm, shape_.width, shape_.width, 1);
        tensors_.back().shape.push_back(Gemma3nFiles::kStreams - 1);
    }

    void plan_gemma3n_begin() {
        plan_own_embeddings(Gemma3nFiles::kOwnEmbedding);
        streams("altup_proj");
    }

    // A mixer of hyper-connections.
    void plan_mixer(const std::string &name, bool injects) {
        const int64_t all = Qwen4Files::kStreams * shape_.width;
        vector(name + "_norm.weight", all, 1);
        matrix(name + "_down", Role::Norm, all, Qwen4Files::kRank, 4);
        matrix(name + "_up", Role::Norm, Qwen4Files::kRank, all, 2);
        if (injects) matrix(name + "_inject", Role::Norm, all, Qwen4Files::kStreams, 4);
    }

    // The weights of residual streams.
    void plan_streams(const std::string &name, int64_t outputs, int64_t kinds) {
        matrix(name + "_fn", Role::Norm, DeepSeek4Files::kStreams * shape_.width, outputs, 1);
        vector(name + "_scale.weight", kinds, 1);
        tensors_.push_back({prefix() + name + "_base.weight", {outputs}, Type::F32, 0, 0.5f, {}});
    }

    // Keys that stand for blocks of tokens.
    void plan_compressor(const std::string &name, int64_t size, int64_t ratio) {
        const int64_t rows = ratio == 4 ? 2 * size : size;
        matrix(name + "kv", Role::Plain, shape_.width, rows, 1);
        matrix(name + "gate", Role::Plain, shape_.width, rows, 1);
        tensors_.push_back({prefix() + name + "ape.weight", {rows, ratio}, Type::F32, 0, 0.7f, {}});
        vector(name + "norm.weight", size, 1);
    }

    void plan_deepseek4() {
        const int64_t width = shape_.width, head = shape_.head_dim, q = shape_.heads * head,
                      rank = shape_.latent_q_rank, groups = DeepSeek4Files::kGroups,
                      n = DeepSeek4Files::kStreams, ratio = DeepSeek4Files::ratio(layer_);
        for (const char *half : {"hc_attn", "hc_ffn"}) plan_streams(half, n * (n + 2), 3);
        matrix("attn_q_a", Role::Plain, width, rank, 1);
        vector("attn_q_a_norm.weight", rank, 1);
        matrix("attn_q_b", Role::Plain, rank, q, 1);
        matrix("attn_kv", Role::Plain, width, head, 1);
        vector("attn_kv_a_norm.weight", head, 1.2f);
        matrix("attn_output_a", Role::AttentionOutput, q / groups, groups * DeepSeek4Files::kRank, 2);
        matrix("attn_output_b", Role::AttentionOutput, groups * DeepSeek4Files::kRank, width, 2 * residual());
        if (layer_ < DeepSeek4Files::kHashLayers) plan_expert_table();
        if (ratio == 0) return;
        plan_compressor("attn_compressor_", head, ratio);
        if (ratio != 4) return;
        matrix("indexer.proj", Role::Plain, width, shape_.indexer_heads, 1);
        matrix("indexer.attn_q_b", Role::Plain, rank, shape_.indexer_heads * kIndexerHead, 1);
        plan_compressor("indexer_compressor_", kIndexerHead, ratio);
    }

    // Different experts for a token's id, not in ascending order.
    void plan_expert_table() {
        const int64_t used = shape_.experts.used, count = shape_.experts.count;
        std::vector<float> numbers;
        for (int64_t token = 0; token < shape_.vocab; ++token)
            for (int64_t i = used; i-- > 0;) numbers.push_back(static_cast<float>((token * 5 + i) % count));
        tensors_.push_back({prefix() + "ffn_gate_tid2eid.weight",
                            {used, shape_.vocab},
                            Type::I32,
                            0,
                            0,
                            std::move(numbers)});
    }

    void plan_gram_table() {
        const int64_t row = shape_.width / Qwen4Files::kHeads;
        matrix("per_layer_token_embd", Role::Embedding, row, Qwen4Files::kHeads * Qwen4Files::kRowsPerHead,
               root(row));
    }

    void plan_qwen4(bool attends) {
        plan_mixer("hc_attn", true);
        plan_mixer("hc_ffn", true);
        if (attends) plan_index(shape_.indexer_heads);
        if (layer_ != Qwen4Files::kGramLayer) return;
        const int64_t all = Qwen4Files::kStreams * shape_.width;
        matrix("ple_key", Role::Plain, shape_.width, all, 1);
        matrix("ple_value", Role::Plain, shape_.width, shape_.width, 1);
        for (const char *name : {"ple_norm_key.weight", "ple_norm_query.weight", "ple_norm_conv.weight"})
            vector(name, all, 1);
        tensors_.push_back(
            {prefix() + "ple_conv1d.weight", {Qwen4Files::kTaps, all}, Type::F32, 0, 0.5f, {}});
    }

    void plan_gemma3n_end() {
        const int64_t width = shape_.width, n = Gemma3nFiles::kStreams;
        plan_own_branch(Gemma3nFiles::kOwnEmbedding);
        matrix("laurel_l", Role::Norm, width, Gemma3nFiles::kRank, 1);
        matrix("laurel_r", Role::Norm, Gemma3nFiles::kRank, width, 1);
        vector("laurel_post_norm.weight", width, 1);
        // Router logits are divided by the width.
        vector("altup_router_norm.weight", width, 1);
        matrix("altup_router", Role::Norm, width, n, static_cast<float>(width));
        matrix("altup_predict_coef", Role::Norm, n, n * n, 0.15f);
        matrix("altup_correct_coef", Role::Norm, n, n, 0.25f);
        vector("altup_correct_scale.weight", width, 1);
    }

    // The output of the layer's own embedding, the factor of the stream, and the input scale of the router.
    void plan_gemma4_end() {
        const int64_t width = shape_.width;
        plan_own_branch(family_.gemma4->own_embedding);
        vector("layer_output_scale.weight", 1, 0.9f);
        if (!has_experts()) return;
        for (const char *name : {"post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"}) norm(name);
        vector("ffn_gate_inp.scale", width, root(width));
        vector("ffn_down_exps.scale", shape_.experts.count, 1);
    }

    void plan_gemma4_begin() {
        const int64_t pairs = shape_.head_dim;  // of full layers; a quarter is rotated
        std::vector<float> divisors(static_cast<size_t>(pairs), 1e30f);
        std::fill_n(divisors.begin(), pairs / 4, 1.0f);
        tensors_.push_back({"rope_freqs.weight", {pairs}, Type::F32, 0, 0, std::move(divisors)});
        plan_own_embeddings(family_.gemma4->own_embedding);
    }

    // The embeddings of every layer; own: their width.
    void plan_own_embeddings(int64_t own) {
        if (own == 0) return;
        matrix("per_layer_token_embd", Role::Embedding, own * shape_.layers, shape_.vocab,
               root(shape_.layers));
        matrix("per_layer_model_proj", Role::Plain, shape_.width, own * shape_.layers, 1);
        vector("per_layer_proj_norm.weight", own, 1);
    }
    void plan_own_branch(int64_t own) {
        if (own == 0) return;
        matrix("inp_gate", Role::Plain, shape_.width, own, 1);
        matrix("proj", Role::Plain, own, shape_.width, 1);
        vector("post_norm.weight", shape_.width, family_.branch_gain);
    }

    void plan_latent_attention() {
        const int64_t width = shape_.width, rank = shape_.latent_rank, rotated = shape_.latent_rotated,
                      hd = shape_.head_dim, heads = shape_.heads, q = heads * (hd + rotated);
        if (family_.latent->low_rank_q) {
            matrix("attn_q_a", Role::Plain, width, shape_.latent_q_rank, 1);
            vector("attn_q_a_norm.weight", shape_.latent_q_rank, 1);
            matrix("attn_q_b", Role::Plain, shape_.latent_q_rank, q, 1.2f);
        } else {
            matrix("attn_q", Role::Plain, width, q, 1.2f);
        }
        matrix("attn_kv_a_mqa", Role::Plain, width, rank + rotated, 1.2f);
        vector("attn_kv_a_norm.weight", rank, 1);
        if (family_.latent->joint) {
            matrix("attn_kv_b", Role::Plain, rank, heads * 2 * hd, 1.2f);
        } else {
            // One matrix per head, on the slowest dimension. K is stored with its rows and columns swapped.
            matrix("attn_k_b", Role::Plain, hd, rank, 1.2f * root(hd) / root(rank));
            tensors_.back().shape.push_back(heads);
            matrix("attn_v_b", Role::AttentionV, rank, hd, 1);
            tensors_.back().shape.push_back(heads);
        }
        if (family_.latent->head_gates) matrix("attn_gate", Role::Plain, width, heads, 1);
        matrix("attn_output", Role::AttentionOutput, heads * hd, width, 2 * residual());
        if (!family_.latent->indexer || layer_ % shape_.indexer_period != 0) return;
        vector("indexer.k_norm.weight", kIndexerHead, 1);
        vector("indexer.k_norm.bias", kIndexerHead, 0);
        matrix("indexer.proj", Role::Plain, width, shape_.indexer_heads, 1);
        matrix("indexer.attn_k", Role::Plain, width, kIndexerHead, 1);
        matrix("indexer.attn_q_b", Role::Plain, shape_.latent_q_rank, shape_.indexer_heads * kIndexerHead, 1);
    }

    // Index queries, and an index key.
    void plan_index(int64_t heads) {
        matrix("indexer.q_proj", Role::Plain, shape_.width, heads * kIndexerHead, 1);
        matrix("indexer.k_proj", Role::Plain, shape_.width, kIndexerHead, 1);
        vector("indexer.q_norm.weight", kIndexerHead, 1);
        vector("indexer.k_norm.weight", kIndexerHead, 1);
    }

    // A router with spread logits, and experts, each as strong as a dense network.
    void plan_experts() {
        const ExpertFiles &files = *family_.experts;
        const ExpertShape &e = shape_.experts;
        const int64_t width = shape_.width;
        const auto router = [&](const std::string &name, std::vector<int64_t> dimensions) {
            tensors_.push_back(
                {prefix() + name + ".weight", std::move(dimensions), Type::F32, 0, 2 / root(width), {}});
        };
        router("ffn_gate_inp", {width, e.count});
        if (files.biases) vector("ffn_gate_inp.bias", e.count, 0);
        const bool by_token = family_.deepseek4 && layer_ < DeepSeek4Files::kHashLayers;
        if (files.selection_bias && !by_token)
            vector(files.bare_name ? "exp_probs_b" : "exp_probs_b.bias", e.count, 0);
        if (files.dense_too) norm("ffn_norm_exps");
        if (e.merged) {
            stack("ffn_gate_up_exps", Role::Plain, width, 2 * e.ff, 1);
        } else {
            if (family_.gated) stack("ffn_gate_exps", Role::Plain, width, e.ff, 1);
            stack("ffn_up_exps", Role::Plain, width, e.ff, 1);
        }
        stack("ffn_down_exps", Role::FfnDown, e.ff, width, 2 * residual());
        if (files.shared == ExpertFiles::Shared::None) return;
        if (files.shared == ExpertFiles::Shared::Gated) router("ffn_gate_inp_shexp", {width});
        const bool both = files.shared == ExpertFiles::Shared::Merged;
        if (family_.gated && !both) matrix("ffn_gate_shexp", Role::Plain, width, e.ff, 1);
        matrix("ffn_up_shexp", Role::Plain, width, both ? 2 * e.ff : e.ff, 1);
        matrix("ffn_down_shexp", Role::FfnDown, e.ff, width, 2 * residual());
    }

    // One matrix per expert, and their biases.
    void stack(const std::string &name, Role role, int64_t cols, int64_t rows, float gain) {
        matrix(name, role, cols, rows, gain);
        tensors_.back().shape.push_back(shape_.experts.count);
        if (!family_.experts->biases) return;
        vector(name + ".bias", rows, 0);
        tensors_.back().shape.push_back(shape_.experts.count);
    }

    void plan_attention() {
        const LayerSizes size = sizes();
        const int64_t width = shape_.width, hd = shape_.head_dim, q = size.heads * hd,
                      kv = size.kv_heads * hd, value = family_.narrow_values ? hd / 2 : hd;
        if (size.heads == 0) return;
        if (size.kv_heads == 0)
            return matrix("attn_output", Role::AttentionOutput, width, width, 2 * residual());
        if (family_.fused_qkv) {
            matrix("attn_qkv", Role::Plain, width, q + 2 * kv, 1.2f);
            if (shape_.bias) vector("attn_qkv.bias", q + 2 * kv, 0);
        } else {
            const bool gate = family_.recurrent && family_.recurrent->gated_attention;
            matrix("attn_q", Role::Plain, width, gate ? 2 * q : q, 1.2f);
            matrix("attn_k", Role::Plain, width, kv, 1.2f);
            matrix("attn_v", Role::AttentionV, width, size.kv_heads * value, 1);
            if (shape_.bias) {
                vector("attn_q.bias", q, 0);
                vector("attn_k.bias", kv, 0);
                vector("attn_v.bias", kv, 0);
            }
        }
        using HeadNorm = FamilyFiles::HeadNorm;
        if (family_.head_norm == HeadNorm::OwnWeights) {
            norm_of_heads("attn_q_norm", shape_.heads);
            norm_of_heads("attn_k_norm", shape_.kv_heads);
        } else if (family_.head_norm == HeadNorm::Gain) {
            tensors_.push_back({prefix() + "attn_q_norm.weight", {1, size.heads}, Type::F32, 1, 0.3f, {}});
        } else if (family_.head_norm != HeadNorm::None) {
            const bool whole = family_.head_norm == HeadNorm::WholeRow;
            vector("attn_q_norm.weight", whole ? q : hd, 1);
            vector("attn_k_norm.weight", whole ? kv : hd, 1);
        }
        if (family_.inner_norms) vector("attn_sub_norm.weight", size.heads * value, 1);
        if (family_.image_experts) {
            matrix("vis_attn_qkv", Role::Plain, width, q + 2 * kv, 1.2f);
            matrix("vis_attn_output", Role::Plain, q, width, 1);
        }
        if (family_.attention_gate) matrix("attn_gate", Role::Plain, width, q, 1);
        if (family_.head_gates) matrix("attn_gate", Role::Plain, width, size.heads, 1);
        matrix("attn_output", Role::AttentionOutput, size.heads * value, width, 2 * residual());
        if (all_biases() || family_.attn_output_bias || (shape_.bias && shape_.arch == "llama"))
            vector("attn_output.bias", width, 0);
    }

    void plan_feed_forward() {
        const int64_t width = shape_.width,
                      ff = family_.gemma4 ? family_.gemma4->hidden(layer_, shape_.layers, shape_.ff)
                           : family_.experts && family_.experts->dense_too ? width
                                                                           : sizes().ff,
                      up = family_.fused_gate_up ? 2 * ff : ff;
        if (ff == 0) return;
        if (family_.gated && !family_.fused_gate_up) matrix("ffn_gate", Role::Plain, width, ff, 1);
        if (family_.gated && !family_.fused_gate_up && all_biases()) vector("ffn_gate.bias", ff, 0);
        matrix("ffn_up", Role::Plain, width, up, 1);
        if (all_biases()) vector("ffn_up.bias", up, 0);
        matrix("ffn_down", Role::FfnDown, ff, width, 2 * residual());
        if (all_biases()) vector("ffn_down.bias", width, 0);
        if (family_.inner_norms) vector("ffn_sub_norm.weight", ff, 1);
        if (!family_.image_experts) return;
        matrix("vis_gate", Role::Plain, width, ff, 1);
        matrix("vis_up", Role::Plain, width, ff, 1);
        matrix("vis_down", Role::Plain, ff, width, 1);
    }

    // The sum of 2 * layers additions is about 1.
    float residual() const { return family_.branch_gain / root(2 * shape_.layers); }
    bool all_biases() const { return family_.biases == FamilyFiles::Biases::All; }

    void norm(const std::string &name) {
        const bool behind =
            name == "post_ffw_norm" || (name == "post_attention_norm" && family_.norms.size() != 2);
        vector(name + (behind && family_.bare_post_norms ? "" : ".weight"), shape_.width,
               behind ? family_.branch_gain : 1);
        if (family_.norm_bias) vector(name + ".bias", shape_.width, 0);
    }
    void norm_of_heads(const std::string &name, int64_t heads) {
        tensors_.push_back({prefix() + name + ".weight", {shape_.head_dim, heads}, Type::F32, 1, 0.1f, {}});
    }

    static float root(int64_t n) { return std::sqrt(static_cast<float>(n)); }
    std::string prefix() const { return layer_ < 0 ? "" : "blk." + std::to_string(layer_) + "."; }

    // gain: standard deviation of the outputs for inputs of standard deviation 1.
    void matrix(const std::string &name, Role role, int64_t cols, int64_t rows, float gain) {
        const Type type = matrix_type(shape_, role, layer_, cols);
        tensors_.push_back({prefix() + name + ".weight", {cols, rows}, type, 0, gain / root(cols), {}});
    }
    void vector(const std::string &name, int64_t n, float mean) {
        tensors_.push_back({prefix() + name, {n}, Type::F32, mean, 0.1f, {}});
    }

    const ModelShape &shape_;
    const FamilyFiles &family_;
    int64_t layer_ = -1;
    std::vector<PlannedTensor> tensors_;
};

}  // namespace

std::vector<PlannedTensor> plan_tensors(const ModelShape &shape) {
    return Planner(shape).plan();
}

}  // namespace runnel::testing
