// qwen4exp: Qwen3.8-Flash-Next. Three gated delta nets, then gated attention, each followed by experts with a gated shared one,
// as in qwen35moe. Besides:
//   - Hyper-connections (Zhu et al. 2024) in place of norms: n residual streams R_0, R_1, ... A half of a layer reads
//       x = mean over i of sigmoid(Wup silu(Wdown N / n))_i * N_i,  N_i = RMS(R_i),  N: all N_i side by side,
//     and what it computes from x, y, is added as R_i += 2 sigmoid(Winject N / n)_i * y. The streams begin as n copies of the
//     token's embedding; the x of a last such mixer takes the place of the output norm.
//   - In one layer, embeddings of n-grams are added before the first half: e, the rows of a large table that hashes of the
//     last tokens choose (kernels::HashedEmbed). With V = Wvalue e and K_i of RMS(Wkey e), each stream is increased by
//       G_i + silu(conv(RMS(G))_i),  G_i = sigmoid(f(K_i . RMS(R_i) / sqrt(width))) * V,  f(s) = sign(s) sqrt(max(|s|, 1e-6)),
//     where the convolution reads every n-th earlier token, n: the longest n-gram.
//   - Sparse attention: a token attends to the last, unfinished block of compress_ratio keys, and to the top_k keys of the
//     whole blocks that index queries score highest. The index key of a block is the mean of its tokens' keys, normalized, and
//     rotated for its first position. A context of at most top_k tokens needs none of this: attention is dense.
// (transformers' Qwen4ExpTextModel; tensors as llama.cpp's converter names them.)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/experts.h"
#include "engine/model/families.h"
#include "engine/model/indexer.h"
#include "engine/model/mixer.h"
#include "engine/model/recurrent.h"

namespace runnel::model {

using namespace kernels;

namespace {

constexpr int64_t kMaxStreams = StreamWeights::kMostStreams, kMaxLowRank = 1 << 16, kMaxGram = 8,
                  kMaxHashHeads = 256;
constexpr const char *kRatios = "attention.compress_ratios", *kGramTable = "per_layer_token_embd.weight";

class Qwen4Exp {
  public:
    explicit Qwen4Exp(Builder &builder);
    void emit();

  private:
    // The embeddings of n-grams.
    struct Grams {
        int32_t layer;
        Size row, taps;  // of the table, and of the convolution over every gram-th token
        int32_t gram;
        std::shared_ptr<HashedEmbed::Hash> hash;
        Size all() const {
            return {row.value * static_cast<int64_t>(hash->heads.size()), "ple heads * their width"};
        }
    };
    struct Indexing {
        IndexSizes sizes;
        int32_t top_k, block;  // top_k: blocks, the unfinished one among them
        WeightId back;         // a rotation by block - 1 positions back
        WeightId zeros, ones;  // [heads][key] and [1][heads], for weights of heads that are all 1
    };

    std::optional<Grams> read_grams() const;
    std::vector<uint64_t> numbers(const char *key, Size count) const;
    std::optional<Indexing> read_indexing();
    WeightId rotation_back(int64_t size, int32_t positions);

    void layer(int32_t i);
    void look_up_grams();
    void add_grams();
    Slot mix_streams(const std::string &name, bool injects);
    void inject(Slot in);
    void index(int32_t i, Slot in, Attention &attention);

    Slot slot(const std::string &name, Size size) { return b_.slot(name, size.value); }
    void norm_streams(const std::string &tensor, Slot in, Slot out) {
        b_.add(Norm{.in = in,
                    .out = out,
                    .weight = b_.vector(tensor, all_),
                    .eps = h_.norm_epsilon,
                    .parts = streams()});
    }
    void sigmoid(Slot in) { b_.add(Activation{in, kNoSlot, in, Activation::Kind::Sigmoid}); }
    Linear::Part part(const std::string &tensor, Size rows, Size cols, Slot out, double scale = 1) {
        return {b_.matrix(tensor, rows, cols), kNoWeight, out, kNoSlot, static_cast<float>(scale)};
    }
    int32_t streams() const { return static_cast<int32_t>(count_.value); }

    Builder &b_;
    const HyperParameters &h_;
    const Metadata &m_;
    Size width_, count_, all_,
        rank_;  // of a row, of streams, their product; of the mixers' products of two matrices
    int32_t rope_;
    DecoderTraits halves_;  // of which only the feed-forward half is used
    std::vector<bool> recurrent_;
    std::vector<int32_t> kv_heads_;
    std::optional<Grams> grams_;
    std::optional<Indexing> indexing_;
    Slot streams_, next_;         // the residual streams, before and after an addition
    Slot normed_, mixed_, half_;  // N, x and y
};

Qwen4Exp::Qwen4Exp(Builder &builder)
    : b_(builder),
      h_(builder.hyper()),
      m_(builder.metadata()),
      width_{h_.embedding_length, "embedding_length"},
      count_{m_.required_integer("hyper_connection.count", 2, kMaxStreams), "hyper_connection.count"},
      all_{count_.value * width_.value, "hyper_connection.count * embedding_length"},
      rank_{m_.required_integer("hyper_connection.low_rank", 1, kMaxLowRank), "hyper_connection.low_rank"},
      rope_(builder.rope(RopeTable::Pairs::Halves)),
      recurrent_(recurrent_layers(builder, 4)),
      kv_heads_(kv_heads_of_layers(builder)),
      grams_(read_grams()),
      indexing_(read_indexing()),
      streams_(slot(kResidual, all_)),
      next_(slot("residual after a half", all_)),
      normed_(slot("normed streams", all_)),
      mixed_(slot(kHidden, width_)),
      half_(slot("branch", width_)) {
    with_experts(halves_, {.normalize = true});
}

// --- keys of the file ----------------------------------------------------------------------------------------

// An array of `count.value` numbers below 2^63.
std::vector<uint64_t> Qwen4Exp::numbers(const char *key, Size count) const {
    const gguf::Value *value = m_.find(key);
    if (value == nullptr) m_.fail(key, "is missing");
    const std::vector<int64_t> all = value->as_ints();
    if (std::ssize(all) != count.value)
        m_.fail(key, "has " + std::to_string(all.size()) + " numbers, but " + std::string(count.keys) +
                         " is " + std::to_string(count.value));
    if (std::ranges::any_of(all, [](int64_t n) { return n < 0; }))
        m_.fail(key, "has a number that is too large");
    return {all.begin(), all.end()};
}

std::optional<Qwen4Exp::Grams> Qwen4Exp::read_grams() const {
    const char *layers = "ple.layers", *size = "ple.ngram_size", *per_gram = "ple.heads_per_ngram",
               *taps = "ple.conv_kernel", *row = "embedding_length_per_layer_input";
    const gguf::Value *value = m_.find(layers);
    if (value == nullptr || value->size() == 0) return std::nullopt;
    if (value->size() != 1) m_.fail(layers, "has several layers, and only one is supported");
    Grams grams{static_cast<int32_t>(m_.required_integer(layers, 0, h_.block_count - 1)),
                {m_.required_integer(row, 1, kMaxLowRank), row},
                {m_.required_integer(taps, 2, kMaxTaps), taps},
                static_cast<int32_t>(m_.required_integer(size, 2, kMaxGram)),
                std::make_shared<HashedEmbed::Hash>()};
    if ((grams.taps.value - 1) * grams.gram >= kMaxTaps)
        m_.fail(taps, "times " + std::string(size) + " is larger than the " + std::to_string(kMaxTaps) +
                          " tokens that a convolution can reach");
    HashedEmbed::Hash &hash = *grams.hash;
    hash.heads_per_gram =
        static_cast<int32_t>(m_.required_integer(per_gram, 1, kMaxHashHeads / (grams.gram - 1)));
    hash.end = static_cast<int32_t>(m_.required_integer("ple.eos_token_id", 0, h_.vocab - 1));
    constexpr int64_t kMostIds = 1 << 24;  // HashedEmbed reads them as floats
    if (h_.vocab >= kMostIds)
        m_.fail(size, "with more than " + std::to_string(kMostIds) + " tokens is not supported");
    (void)m_.find("ple.image_token_id");  // of images
    hash.multipliers = numbers("ple.layer_multipliers", {grams.gram, size});
    const Size heads{int64_t{grams.gram - 1} * hash.heads_per_gram,
                     "(ple.ngram_size - 1) * ple.heads_per_ngram"};
    const std::vector<uint64_t> offsets = numbers("ple.head_offsets", heads),
                                sizes = numbers("ple.head_vocab_sizes", heads);
    const WeightId table = b_.matrix(kGramTable, {b_.rows_of(kGramTable), "rows"}, grams.row);
    const auto rows = static_cast<uint64_t>(b_.program().weights[static_cast<size_t>(table)].rows);
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] == 0) m_.fail("ple.head_vocab_sizes", "has a 0");
        if (offsets[i] > rows || sizes[i] > rows - offsets[i])
            m_.fail("ple.head_offsets",
                    "goes beyond the " + std::to_string(rows) + " rows of per_layer_token_embd");
        hash.heads.push_back({offsets[i], sizes[i]});
    }
    return grams;
}

std::optional<Qwen4Exp::Indexing> Qwen4Exp::read_indexing() {
    const int64_t tokens = m_.required_integer(kIndexerTopK, 1, 1 << 20);
    const auto ratios = m_.integers(kRatios, h_.block_count, 0, kMaxTaps);
    if (!ratios) m_.fail(kRatios, "is missing");
    std::optional<int64_t> of_layers;
    for (size_t i = 0; i < ratios->size(); ++i) {
        if (recurrent_[i]) continue;
        if (of_layers.value_or((*ratios)[i]) != (*ratios)[i])
            m_.fail(kRatios, "differs between layers, which is not supported");
        of_layers = (*ratios)[i];
    }
    const int64_t block = of_layers.value_or(2);  // (without such layers, nothing is indexed)
    if (block < 2) m_.fail(kRatios, "is less than 2 in a layer with attention (full_attention_interval)");
    if (tokens % block != 0) m_.fail(kIndexerTopK, "is not a multiple of attention.compress_ratios");
    const bool dense = b_.chosen_context() > 0 && b_.chosen_context() <= tokens;
    for (int32_t i = 0; i < h_.block_count; ++i)
        if (dense || recurrent_[static_cast<size_t>(i)]) ignore_index_rows(b_, i);
    const IndexSizes sizes = read_index_sizes(b_);
    if (dense || !of_layers) return std::nullopt;
    check_indexed_context(b_);
    const int64_t heads = sizes.heads.value, key = sizes.key.value;
    if (key > kMaxKeyDims || heads * key > kMaxStateWidth) m_.fail(kIndexerKey, "is too large");
    std::vector<float> zeros(static_cast<size_t>(heads * key)), ones(static_cast<size_t>(heads), 1.0f);
    return Indexing{sizes,
                    static_cast<int32_t>(tokens / block + 1),
                    static_cast<int32_t>(block),
                    rotation_back(key, static_cast<int32_t>(block - 1)),
                    b_.constant("zeros", std::move(zeros), 1, heads, key),
                    b_.constant("ones", std::move(ones), 1, 1, heads)};
}

// A matrix that rotates rows of `size` by that many positions back.
WeightId Qwen4Exp::rotation_back(int64_t size, int32_t positions) {
    const RopeTable &rope = b_.program().ropes[static_cast<size_t>(rope_)];
    std::vector<float> matrix(static_cast<size_t>(size * size));
    const auto at = [&](size_t row, size_t col) -> float & {
        return matrix[row * static_cast<size_t>(size) + col];
    };
    for (size_t i = 0; i < static_cast<size_t>(size); ++i) at(i, i) = 1;
    const size_t pairs = rope.inv_freq.size();
    for (size_t j = 0; j < pairs; ++j) {
        const double angle = -positions * rope.inv_freq[j];
        at(j, j) = at(j + pairs, j + pairs) = static_cast<float>(std::cos(angle));
        at(j + pairs, j) = static_cast<float>(std::sin(angle));
        at(j, j + pairs) = -at(j + pairs, j);
    }
    return b_.constant("rotation back", std::move(matrix), 1, size, size);
}

// --- the streams ---------------------------------------------------------------------------------------------

// x of a mixer, in mixed_. injects: next, inject() adds to the streams.
Slot Qwen4Exp::mix_streams(const std::string &name, bool injects) {
    const Slot low = slot("low rank of streams", rank_), gates = slot("gates of streams", all_);
    const double share = 1 / double(count_.value);
    norm_streams(name + "_norm.weight", streams_, normed_);
    Linear down{normed_, {part(name + "_down.weight", rank_, all_, low, share)}};
    if (injects)
        down.parts.push_back(part(name + "_inject.weight", count_, all_, slot("injections", count_), share));
    b_.add(down);
    b_.add(Activation{low, kNoSlot, low, Activation::Kind::Silu});
    b_.add(Linear{low, {part(name + "_up.weight", all_, rank_, gates)}});
    b_.add(Activation{gates, normed_, gates, Activation::Kind::Sigmoid});
    b_.add(Mix{.in = {gates}, .out = {mixed_}, .width = width_.value, .scale = static_cast<float>(share)});
    return mixed_;
}

// Adds `in` to the streams, with the weights that the last mixer computed.
void Qwen4Exp::inject(Slot in) {
    const int64_t n = count_.value;
    const Slot weights = slot("injections", count_),
               coefficients = b_.slot("coefficients of streams", n * (n + 1));
    sigmoid(weights);
    // Row j: stream j, and 2 times its weight for `in`.
    std::vector<float> matrix(static_cast<size_t>(n * (n + 1) * n)),
        constants(static_cast<size_t>(n * (n + 1)));
    for (int64_t j = 0; j < n; ++j) {
        constants[static_cast<size_t>(j * (n + 1) + j)] = 1;
        matrix[static_cast<size_t>((j * (n + 1) + n) * n + j)] = 2;
    }
    b_.add(
        Linear{weights,
               {{b_.constant("places of injections", std::move(matrix), 1, n * (n + 1), n),
                 b_.constant("streams", std::move(constants), 1, 1, n * (n + 1)), coefficients, kNoSlot}}});
    b_.add(Mix{.in = {streams_, in}, .out = {next_}, .width = width_.value, .coefficients = coefficients});
    std::swap(streams_, next_);
}

// --- embeddings of n-grams -----------------------------------------------------------------------------------

void Qwen4Exp::look_up_grams() {
    const int64_t n = grams_->gram;
    const Slot id = b_.slot("token's id", 1), repeated = b_.slot("token's id, repeated", n),
               tokens = b_.slot("last tokens", n);
    b_.add(Embed{kNoWeight, id});
    b_.add(Copy{.in = id,
                .out = repeated,
                .from = {},
                .to = {.stride = 1},
                .count = static_cast<int32_t>(n),
                .width = 1});
    // Channel i takes the id of i tokens before.
    std::vector<float> taps(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) taps[static_cast<size_t>((n - 1 - i) * n + i)] = 1;
    b_.add(ShortConv{.in = repeated,
                     .out = tokens,
                     .weight = b_.constant("earlier tokens", std::move(taps), 1, n, n),
                     .state = b_.state_layer((n - 1) * n)});
    b_.add(HashedEmbed{.tokens = tokens,
                       .out = slot("n-gram embedding", grams_->all()),
                       .table = b_.matrix(kGramTable, {b_.rows_of(kGramTable), "rows"}, grams_->row),
                       .hash = grams_->hash});
}

void Qwen4Exp::add_grams() {
    const std::string prefix = layer_prefix(grams_->layer) + "ple_";
    const Slot in = slot("n-gram embedding", grams_->all()), keys = slot("n-gram keys", all_),
               value = slot("n-gram value", width_), gate = slot("n-gram gate", count_),
               gated = slot("gated n-grams", all_), convolved = slot("convolved n-grams", all_);
    b_.add(Linear{in,
                  {part(prefix + "key.weight", all_, grams_->all(), keys),
                   part(prefix + "value.weight", width_, grams_->all(), value)}});
    norm_streams(prefix + "norm_key.weight", keys, keys);
    norm_streams(prefix + "norm_query.weight", streams_, normed_);
    b_.add(Activation{keys, normed_, keys, Activation::Kind::Identity});
    const auto factor = static_cast<float>(1 / std::sqrt(double(width_.value)));
    b_.add(
        HeadLinear{keys,
                   gate,
                   {0, width_.value},
                   {0, 1},
                   b_.constant("sum of products", std::vector<float>(static_cast<size_t>(all_.value), factor),
                               count_.value, 1, width_.value)});
    b_.add(Activation{gate, kNoSlot, gate, Activation::Kind::SignedRoot, {.positive = 1e-6f}});
    sigmoid(gate);
    b_.add(Mix{.in = {value}, .out = {gated}, .width = width_.value, .coefficients = gate});
    norm_streams(prefix + "norm_conv.weight", gated, normed_);
    // One tap for every gram-th token: those between are 0.
    const int64_t taps = grams_->taps.value, reach = (taps - 1) * grams_->gram;
    const std::vector<float> by_channel = b_.values(prefix + "conv1d.weight", all_, grams_->taps);
    std::vector<float> rows(static_cast<size_t>((reach + 1) * all_.value));
    for (int64_t j = 0; j < taps; ++j)
        for (int64_t c = 0; c < all_.value; ++c)
            rows[static_cast<size_t>(j * grams_->gram * all_.value + c)] =
                by_channel[static_cast<size_t>(c * taps + j)];
    b_.add(
        ShortConv{.in = normed_,
                  .out = convolved,
                  .weight = b_.constant(prefix + "conv1d.weight", std::move(rows), 1, reach + 1, all_.value),
                  .silu = true,
                  .state = b_.state_layer(reach * all_.value)});
    b_.add(Mix{.in = {streams_, gated, convolved}, .out = {next_}, .width = all_.value});
    std::swap(streams_, next_);
}

// --- layers --------------------------------------------------------------------------------------------------

void Qwen4Exp::index(int32_t i, Slot in, Attention &attention) {
    const Indexing &x = *indexing_;
    const int64_t key = x.sizes.key.value;
    const auto [q, raw] = emit_index_rows(b_, x.sizes, i, in);
    const Slot mean = slot("mean index key", x.sizes.key), k = slot("index key of a block", x.sizes.key),
               weights = slot("index weights", x.sizes.heads), chosen = b_.slot("chosen blocks", x.top_k);
    std::vector<float> shares(static_cast<size_t>(x.block * key), 1 / static_cast<float>(x.block));
    b_.add(ShortConv{.in = raw,
                     .out = mean,
                     .weight = b_.constant("mean of keys", std::move(shares), 1, x.block, key),
                     .state = b_.state_layer((x.block - 1) * key)});
    b_.add(Norm{.in = mean, .out = mean, .weight = index_key_norm(b_, x.sizes, i), .eps = h_.norm_epsilon});
    b_.add(Linear{mean, {{x.back, kNoWeight, k, kNoSlot}, {x.zeros, x.ones, weights, kNoSlot}}});
    b_.add(Indexer{.q = q,
                   .k = k,
                   .weights = weights,
                   .chosen = chosen,
                   .cache = b_.cache_layer({1, static_cast<int32_t>(key), 0, 0, true}, 0),
                   .heads = static_cast<int32_t>(x.sizes.heads.value),
                   .head_dim = static_cast<int32_t>(key),
                   .top_k = x.top_k,
                   .rope = rope_,
                   .block = x.block,
                   .pooled = true});
    attention.chosen = chosen;
    attention.chosen_block = x.block;
    attention.chosen_pooled = true;
}

void Qwen4Exp::layer(int32_t i) {
    const std::string prefix = layer_prefix(i);
    if (grams_ && grams_->layer == i) add_grams();
    const SubLayer half{mix_streams(prefix + "hc_attn", true), half_, kNoSlot};
    if (recurrent_[static_cast<size_t>(i)])
        emit_gated_delta(b_, i, half, false, Activation::Kind::Sigmoid);
    else
        emit_gated_attention(b_, i, half, rope_, kv_heads_[static_cast<size_t>(i)],
                             [&](Attention &attention) {
                                 if (indexing_) index(i, half.in, attention);
                             });
    inject(half_);
    halves_.feed_forward(b_, i, {mix_streams(prefix + "hc_ffn", true), half_, kNoSlot});
    inject(half_);
}

void Qwen4Exp::emit() {
    const Size vocab{h_.vocab, "the vocabulary"};
    const WeightId table = b_.matrix("token_embd.weight", vocab, width_);
    b_.add(Embed{table, mixed_});
    b_.add(Copy{.in = mixed_,
                .out = streams_,
                .from = {},
                .to = {.stride = width_.value},
                .count = streams(),
                .width = width_.value});
    if (grams_) look_up_grams();
    for (int32_t i = 0; i < h_.block_count; ++i) {
        b_.begin_layer(i);
        layer(i);
    }
    b_.end_layers();
    b_.add(Logits{.in = mix_streams("output_hc", false),
                  .weight = b_.has("output.weight") ? b_.matrix("output.weight", vocab, width_) : table});
}

}  // namespace

void emit_qwen4exp(Builder &b) {
    Qwen4Exp(b).emit();
}

}  // namespace runnel::model
