// deepseek4: DeepSeek-V4-Flash and V4-Pro.
//   - Hyper-connections in place of residual additions: n residual streams R_0, R_1, ... With N = all streams side by side,
//     RMS-normalized without weights, kernels::StreamWeights makes of Wfn N what a half of a layer reads and writes:
//       x = sum over i of read_i R_i,  y = half(RMS(x)),  R_j becomes sum over i of C_ij R_i + write_j y.
//     The streams begin as n copies of the token's embedding; a last mixer without C and write joins them before the output norm.
//   - Attention with one head of keys, which are the values too: k = rope(RMS(Wkv x)), rotated in its last dimensions; so the
//     output is rotated back for the token's position. Queries are latent, q = rope(RMS(Wqb RMS(Wqa x))), the second norm
//     without weights for each head. There are sinks, and the output matrix is a product: A for each group of heads, then B.
//   - A token sees the keys of a short window, and by attention.compress_ratios of the layer: 0: no others; 4: of the keys that
//     stand for 4 tokens each, the attention.indexer.top_k which index queries score highest; another number: all keys that
//     stand for so many tokens. Such a key is a mean of rows of the tokens, weighted channel by channel (kernels::SoftPool),
//     normalized and rotated for the first of them; with a ratio of 4, it also covers the 4 tokens before. Index keys are
//     made likewise. Rotations of layers with such keys have another base, and are the ones that YaRN scales.
//   - Experts: scores sqrt(softplus); in the first hash_layer_count layers a table chooses them by the token's id.
// (transformers' DeepseekV4Model; tensors as llama.cpp's converter names them.)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/indexer.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr int64_t kMostRank = 1 << 16, kMaxIterations = 1000, kSparseRatio = 4,
                  kMaxRatio = SoftPool::kMostRows / 2;
constexpr int64_t kMostIds = 1 << 24;  // Experts reads the numbers of experts as floats
constexpr const char *kCompressRatios = "attention.compress_ratios",
                     *kGroups = "attention.output_group_count", *kHashLayers = "hash_layer_count";

class DeepSeek4 {
  public:
    explicit DeepSeek4(Builder &builder);
    void emit();

  private:
    // Keys that stand for blocks of tokens: their size, and where their tensors are.
    struct Compressed {
        std::string tensors;  // of the layer: "attn_" or "indexer_"
        Size size;
        int32_t ratio, rope;
        bool overlaps() const { return ratio == kSparseRatio; }
    };

    std::vector<int32_t> read_ratios() const;
    void read_indexing();
    WeightId floats(const std::string &name, Size rows, Size cols);

    void layer(int32_t i);
    Slot read_streams(const std::string &name, bool mixes);
    void write_streams(Slot in);
    void attend(int32_t i, Slot in, Slot out);
    void attend_window(int32_t i, Slot q, Slot k, Slot out, Slot sums);
    void attend_blocks(int32_t i, Slot in, Slot latent, Slot q, Slot out, Slot sums);
    Slot compress(const Compressed &keys, int32_t i, Slot in);
    Slot index(int32_t i, Slot in, Slot latent);
    void experts(int32_t i, Slot in, Slot out);
    Slot look_up_experts(int32_t i);

    Slot slot(const std::string &name, Size size) { return b_.slot(name, size.value); }
    void norm(const std::string &tensor, Slot in, Slot out, Size size) {
        b_.add(Norm{.in = in, .out = out, .weight = b_.vector(tensor, size), .eps = h_.norm_epsilon});
    }
    Linear::Part part(const std::string &tensor, Size rows, Size cols, Slot out, double scale = 1) {
        return {b_.matrix(tensor, rows, cols), kNoWeight, out, kNoSlot, static_cast<float>(scale)};
    }
    Attention attention(Slot q, Slot k, Slot out, Slot sums, int32_t window);
    int32_t rope(int32_t i) const { return ratios_[static_cast<size_t>(i)] == 0 ? rope_ : block_rope_; }
    int32_t head() const { return static_cast<int32_t>(head_.value); }

    Builder &b_;
    const HyperParameters &h_;
    const Metadata &m_;
    Size width_, count_, all_;      // of a row, of streams, their product
    Size head_, queries_, latent_;  // of a head, of all heads' queries, of latent queries
    Size groups_, group_, rank_;    // of heads with an output matrix, its columns and rows
    int64_t window_;
    std::vector<int32_t> ratios_;  // by layer
    int32_t rope_, block_rope_, index_rope_ = -1;
    IndexSizes index_sizes_ = {};
    int32_t top_k_ = 0;  // blocks; 0: a token sees all
    int64_t hash_layers_;
    ExpertTraits experts_;
    float streams_eps_;
    int32_t iterations_;
    Slot streams_, next_, mixed_, half_;  // the residual streams, before and after an addition; x and y
};

// --- keys of the file ----------------------------------------------------------------------------------------

DeepSeek4::DeepSeek4(Builder &builder)
    : b_(builder),
      h_(builder.hyper()),
      m_(builder.metadata()),
      width_{h_.embedding_length, "embedding_length"},
      count_{m_.required_integer("hyper_connection.count", 2, StreamWeights::kMostStreams),
             "hyper_connection.count"},
      all_{count_.value * width_.value, "hyper_connection.count * embedding_length"},
      head_{h_.key_length, "attention.key_length"},
      queries_{int64_t{h_.head_count} * h_.key_length, "attention.head_count * attention.key_length"},
      latent_{m_.required_integer("attention.q_lora_rank", 1, kMostRank), "attention.q_lora_rank"},
      groups_{m_.required_integer(kGroups, 1, h_.head_count), kGroups},
      group_{queries_.value / groups_.value,
             "attention.head_count * attention.key_length / attention.output_group_count"},
      rank_{m_.required_integer("attention.output_lora_rank", 1, kMostRank), "attention.output_lora_rank"},
      window_(m_.required_integer("attention.sliding_window", 1, INT32_MAX)),
      ratios_(read_ratios()),
      hash_layers_(m_.required_integer(kHashLayers, 0, h_.block_count)),
      streams_eps_(static_cast<float>(m_.required_real("hyper_connection.epsilon", 0, 1))),
      iterations_(static_cast<int32_t>(
          m_.required_integer("hyper_connection.sinkhorn_iterations", 1, kMaxIterations))),
      streams_(slot(kResidual, all_)),
      next_(slot("residual after a half", all_)),
      mixed_(slot(kHidden, width_)),
      half_(slot("branch", width_)) {
    if (h_.value_length != h_.key_length)
        m_.fail("attention.value_length", "differs from attention.key_length, and keys are the values");
    if (h_.head_count_kv != 1) m_.fail("attention.head_count_kv", "is not 1");
    if (h_.head_count % groups_.value != 0) m_.fail(kGroups, "does not divide attention.head_count");
    (void)m_.required_integer("expert_gating_func", 4, 4);
    (void)m_.integer("leading_dense_block_count", 0, 0);
    const double base = m_.real("rope.freq_base").value_or(10000),
                 block_base = m_.required_real("attention.compress_rope_freq_base");
    if (!(base > 1)) m_.fail("rope.freq_base", "must be greater than 1");
    if (!(block_base > 1)) m_.fail("attention.compress_rope_freq_base", "must be greater than 1");
    rope_ = b_.unscaled_rope(RopeTable::Pairs::Adjacent, base);
    const auto first = [&](int32_t rope, Size size) {
        b_.program().ropes[static_cast<size_t>(rope)].first =
            static_cast<int32_t>(size.value) - h_.rope_dimensions;
        b_.program().ropes[static_cast<size_t>(rope)].magnitude = 1;
        return rope;
    };
    first(rope_, head_);
    block_rope_ = first(b_.rope(RopeTable::Pairs::Adjacent, block_base / base), head_);
    read_indexing();
    if (top_k_ > 0)
        index_rope_ = first(b_.rope(RopeTable::Pairs::Adjacent, block_base / base), index_sizes_.key);
    experts_.normalize = m_.boolean("expert_weights_norm").value_or(true);
    experts_.limits = silu_limits(b_, "swiglu_clamp_exp", true);
    experts_.shared_limits =
        m_.find("swiglu_clamp_shexp") ? silu_limits(b_, "swiglu_clamp_shexp", true) : experts_.limits;
}

// Files may have numbers for the draft block, too.
std::vector<int32_t> DeepSeek4::read_ratios() const {
    const gguf::Value *value = m_.find(kCompressRatios);
    if (value == nullptr) m_.fail(kCompressRatios, "is missing");
    const std::vector<int64_t> all = value->as_ints();
    if (std::ssize(all) < h_.block_count)
        m_.fail(kCompressRatios, "has " + std::to_string(all.size()) + " numbers, but there are " +
                                     std::to_string(h_.block_count) + " layers");
    std::vector<int32_t> ratios;
    for (int32_t i = 0; i < h_.block_count; ++i) {
        const int64_t ratio = all[static_cast<size_t>(i)];
        if (ratio < 0 || ratio == 1 || ratio > kMaxRatio)
            m_.fail(kCompressRatios, "has " + std::to_string(ratio) +
                                         ", which is neither 0 nor between 2 and " +
                                         std::to_string(kMaxRatio));
        ratios.push_back(static_cast<int32_t>(ratio));
    }
    return ratios;
}

// A context with at most top_k whole blocks needs no indexer.
void DeepSeek4::read_indexing() {
    const int64_t most = m_.required_integer(kIndexerTopK, 1, 1 << 20);
    index_sizes_ = read_index_sizes(b_);
    const bool any = std::ranges::count(ratios_, kSparseRatio) > 0;
    if (!any || (b_.chosen_context() > 0 && b_.chosen_context() / kSparseRatio <= most)) {
        for (int32_t i = 0; i < h_.block_count; ++i)
            for (const char *name :
                 {"indexer.proj", "indexer.attn_q_b", "indexer_compressor_kv", "indexer_compressor_gate",
                  "indexer_compressor_ape", "indexer_compressor_norm"})
                b_.ignore(layer_prefix(i) + name + ".weight");
        return;
    }
    check_indexed_context(b_);
    top_k_ = static_cast<int32_t>(most);
}

// A small matrix in F32, whatever its type in the file.
WeightId DeepSeek4::floats(const std::string &name, Size rows, Size cols) {
    return b_.constant(name, b_.values(name, rows, cols), 1, rows.value, cols.value);
}

// --- the streams ---------------------------------------------------------------------------------------------

// What a half of a layer reads, in mixed_. mixes: next, write_streams() adds to the streams.
Slot DeepSeek4::read_streams(const std::string &name, bool mixes) {
    const int64_t n = count_.value;
    const Size outputs{mixes ? n * (n + 2) : n, "hyper_connection.count * (hyper_connection.count + 2)"};
    const Slot normed = slot("normed streams", all_), raw = slot("raw weights of streams", outputs),
               read = slot("read weights", count_);
    b_.add(Norm{.in = streams_, .out = normed, .weight = kNoWeight, .eps = h_.norm_epsilon});
    b_.add(Linear{normed, {part(name + "_fn.weight", outputs, all_, raw)}});
    b_.add(StreamWeights{.in = raw,
                         .read = read,
                         .mix = mixes ? b_.slot("mix of streams", n * (n + 1)) : kNoSlot,
                         .scales = b_.vector(name + "_scale.weight", {mixes ? 3 : 1, "the kinds of weights"}),
                         .bias = b_.vector(name + "_base.weight", outputs),
                         .eps = streams_eps_,
                         .iterations = iterations_});
    b_.add(Mix{.in = {streams_}, .out = {mixed_}, .width = width_.value, .coefficients = read});
    return mixed_;
}

void DeepSeek4::write_streams(Slot in) {
    b_.add(Mix{.in = {streams_, in},
               .out = {next_},
               .width = width_.value,
               .coefficients = b_.slot("mix of streams", count_.value * (count_.value + 1))});
    std::swap(streams_, next_);
}

// --- attention -----------------------------------------------------------------------------------------------

Attention DeepSeek4::attention(Slot q, Slot k, Slot out, Slot sums, int32_t window) {
    return {.q = q,
            .k = k,
            .v = kNoSlot,
            .out = out,
            .cache = b_.cache_layer({1, head(), 0}, window),
            .heads = h_.head_count,
            .kv_heads = 1,
            .head_dim_k = head(),
            .head_dim_v = head(),
            .scale = static_cast<float>(1 / std::sqrt(double(head_.value))),
            .window = window,
            .sums = sums};
}

// The keys that stand for blocks, in the row of a block's last token.
Slot DeepSeek4::compress(const Compressed &keys, int32_t i, Slot in) {
    const std::string name = layer_prefix(i) + keys.tensors + "compressor_";
    const Size rows{(keys.overlaps() ? 2 : 1) * keys.size.value, keys.size.keys};
    const Slot value = slot(keys.tensors + "block values", rows),
               score = slot(keys.tensors + "block scores", rows),
               key = slot(keys.tensors + "block key", keys.size);
    b_.add(Linear{
        in,
        {part(name + "kv.weight", rows, width_, value), part(name + "gate.weight", rows, width_, score)}});
    SoftPool pool{.value = value,
                  .score = score,
                  .out = key,
                  .bias = floats(name + "ape.weight", {keys.ratio, kCompressRatios}, rows),
                  .block = keys.ratio,
                  .overlaps = keys.overlaps()};
    pool.state = b_.state_layer((pool.rows() - 1) * 2 * rows.value);
    b_.add(pool);
    norm(name + "norm.weight", key, key, keys.size);
    b_.add(Rope{.slot = key,
                .head_dim = static_cast<int32_t>(keys.size.value),
                .rope = keys.rope,
                .block = keys.ratio});
    return key;
}

// The numbers of the blocks that a token sees. Besides top_k whole ones, the indexer names the unfinished block, whose key
// is not there yet: no token sees it.
Slot DeepSeek4::index(int32_t i, Slot in, Slot latent) {
    const Size heads = index_sizes_.heads, key = index_sizes_.key,
               rows{heads.value * key.value, "attention.indexer.head_count * attention.indexer.key_length"};
    const std::string name = layer_prefix(i) + "indexer.";
    const Slot q = slot("index queries", rows), weights = slot("index weights", heads),
               chosen = b_.slot("chosen blocks", top_k_ + 1);
    const Slot k = compress({"indexer_", key, static_cast<int32_t>(kSparseRatio), index_rope_}, i, in);
    b_.add(Linear{latent, {part(name + "attn_q_b.weight", rows, latent_, q)}});
    b_.add(
        Linear{in, {part(name + "proj.weight", heads, width_, weights, 1 / std::sqrt(double(rows.value)))}});
    b_.add(Rope{.slot = q, .head_dim = static_cast<int32_t>(key.value), .rope = index_rope_});
    b_.add(Indexer{.q = q,
                   .k = k,
                   .weights = weights,
                   .chosen = chosen,
                   .cache = b_.cache_layer({1, static_cast<int32_t>(key.value), 0, 0, true}, 0),
                   .heads = static_cast<int32_t>(heads.value),
                   .head_dim = static_cast<int32_t>(key.value),
                   .top_k = top_k_ + 1,
                   .block = static_cast<int32_t>(kSparseRatio),
                   .pooled = true});
    return chosen;
}

void DeepSeek4::attend_window(int32_t i, Slot q, Slot k, Slot out, Slot sums) {
    Attention step = attention(q, k, out, sums, static_cast<int32_t>(window_));
    step.sinks = b_.vector(layer_prefix(i) + "attn_sinks.weight", {h_.head_count, "attention.head_count"});
    b_.add(step);
}

void DeepSeek4::attend_blocks(int32_t i, Slot in, Slot latent, Slot q, Slot out, Slot sums) {
    const int32_t ratio = ratios_[static_cast<size_t>(i)];
    const Slot key = compress({"attn_", head_, ratio, block_rope_}, i, in);
    const Slot chosen = ratio == kSparseRatio && top_k_ > 0 ? index(i, in, latent) : kNoSlot;
    Attention step = attention(q, key, out, sums, 0);
    step.stride = ratio;
    step.chosen = chosen;
    if (chosen != kNoSlot) step.chosen_block = ratio, step.chosen_pooled = true;
    b_.add(step);
}

void DeepSeek4::attend(int32_t i, Slot in, Slot out) {
    const std::string name = layer_prefix(i) + "attn_";
    const Slot latent = slot("latent q", latent_), q = slot("q", queries_), k = slot("k", head_),
               attended = slot("attended", queries_),
               joined = slot("output of groups", {groups_.value * rank_.value, ""});
    b_.add(Linear{
        in,
        {part(name + "q_a.weight", latent_, width_, latent), part(name + "kv.weight", head_, width_, k)}});
    norm(name + "q_a_norm.weight", latent, latent, latent_);
    norm(name + "kv_a_norm.weight", k, k, head_);
    b_.add(Linear{latent, {part(name + "q_b.weight", queries_, latent_, q)}});
    b_.add(Norm{.in = q, .out = q, .weight = kNoWeight, .eps = h_.norm_epsilon, .parts = h_.head_count});
    for (const Slot rotated : {q, k}) b_.add(Rope{.slot = rotated, .head_dim = head(), .rope = rope(i)});
    if (ratios_[static_cast<size_t>(i)] == 0) {
        attend_window(i, q, k, attended, kNoSlot);
    } else {
        const Size both{int64_t{2} * h_.head_count, "2 * attention.head_count"};
        const Slot of_blocks = slot("attended blocks", queries_), sums = slot("sums of the window", both),
                   block_sums = slot("sums of blocks", both);
        attend_window(i, q, k, attended, sums);
        attend_blocks(i, in, latent, q, of_blocks, block_sums);
        b_.add(JoinAttention{{{attended, sums}, {of_blocks, block_sums}}, attended, h_.head_count});
    }
    b_.add(Rope{.slot = attended, .head_dim = head(), .rope = rope(i), .back = true});
    b_.add(HeadLinear{attended,
                      joined,
                      {0, group_.value},
                      {0, rank_.value},
                      b_.matrices(name + "output_a.weight", groups_, rank_, group_)});
    const Size inner{groups_.value * rank_.value,
                     "attention.output_group_count * attention.output_lora_rank"};
    b_.add(Linear{joined, {part(name + "output_b.weight", width_, inner, out)}});
}

// --- experts -------------------------------------------------------------------------------------------------

// The numbers of the experts that a table gives the token.
Slot DeepSeek4::look_up_experts(int32_t i) {
    const int64_t used = m_.required_integer("expert_used_count", 1, kMostIds),
                  experts = m_.required_integer("expert_count", 1, kMostIds);
    const std::string name = layer_prefix(i) + "ffn_gate_tid2eid.weight";
    const Slot chosen = b_.slot("chosen experts", used);
    std::vector<float> table =
        b_.number_sets(name, {h_.vocab, "the vocabulary"}, {used, "expert_used_count"}, experts);
    b_.add(Embed{b_.constant(name, std::move(table), 1, h_.vocab, used), chosen});
    return chosen;
}

void DeepSeek4::experts(int32_t i, Slot in, Slot out) {
    ExpertTraits traits = experts_;
    b_.ignore(layer_prefix(i) + "exp_probs_b_vl.bias");  // of images
    if (i < hash_layers_)
        traits.chosen = look_up_experts(i);
    else
        (void)b_.vector(layer_prefix(i) + "exp_probs_b.bias",
                        {m_.required_integer("expert_count", 1, kMostIds), "expert_count"});
    emit_experts(b_, traits, i, {in, out, kNoSlot});
}

// --- layers --------------------------------------------------------------------------------------------------

void DeepSeek4::layer(int32_t i) {
    const std::string prefix = layer_prefix(i);
    const Slot in = slot("normed half", width_);
    norm(prefix + "attn_norm.weight", read_streams(prefix + "hc_attn", true), in, width_);
    attend(i, in, half_);
    write_streams(half_);
    norm(prefix + "ffn_norm.weight", read_streams(prefix + "hc_ffn", true), in, width_);
    experts(i, in, half_);
    write_streams(half_);
}

void DeepSeek4::emit() {
    const Size vocab{h_.vocab, "the vocabulary"};
    const WeightId table = b_.matrix("token_embd.weight", vocab, width_);
    b_.add(Embed{table, mixed_});
    b_.add(Copy{.in = mixed_,
                .out = streams_,
                .from = {},
                .to = {.stride = width_.value},
                .count = static_cast<int32_t>(count_.value),
                .width = width_.value});
    for (int32_t i = 0; i < h_.block_count; ++i) {
        b_.begin_layer(i);
        layer(i);
    }
    b_.end_layers();
    norm("output_norm.weight", read_streams("output_hc", false), mixed_, width_);
    b_.add(Logits{.in = mixed_,
                  .weight = b_.has("output.weight") ? b_.matrix("output.weight", vocab, width_) : table});
}

}  // namespace

void emit_deepseek4(Builder &b) {
    DeepSeek4(b).emit();
}

}  // namespace runnel::model
