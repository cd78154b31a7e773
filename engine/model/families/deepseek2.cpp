// deepseek2: DeepSeek V2, V3, R1, V3.1, Kimi K2, Moonlight, GLM-4.7-Flash, GigaChat 3: multi-head latent
// attention (DeepSeek-V2, 2024), and experts after some dense layers.
//
// Keys and values of all heads are linear in one latent vector c per token: k_h = [K_h c | r], v_h = V_h c,
// with a rotated part r that the heads share. Then q_h . k_h = [K_h^T q_h | q's rotated part] . [c | r] and
// the sum of values is V_h (sum of c): only [c | r] is cached, as one K/V head whose values are the first
// part of its keys. Files hold K^T and V (attn_k_b, attn_v_b), or both in one matrix (attn_kv_b: per head the
// rows of K, then those of V), which is taken apart here.
#include <cmath>
#include <optional>

#include "engine/model/experts.h"
#include "engine/model/families.h"

namespace runnel::model {

using namespace kernels;

namespace {

struct Latent {
    explicit Latent(const Builder &b);
    int64_t width() const { return rank.value + rotated.value; }  // of a key
    int64_t q_head() const { return plain.value + rotated.value; }

    int64_t heads;
    Size rank, rotated, plain, value;  // c, r, the rest of a query head, a value head
    int64_t q_rank;                    // 0: queries come straight from the layer's input
    float scale;                       // of q . k
    Attention::Temperature temperature = {};
};

Latent::Latent(const Builder &b) : heads(b.hyper().head_count) {
    const Metadata &m = b.metadata();
    const HyperParameters &h = b.hyper();
    rank = {m.required_integer("attention.kv_lora_rank", 1, 65536), "attention.kv_lora_rank"};
    q_rank = m.integer("attention.q_lora_rank", 0, 65536).value_or(0);
    // Newer files give the sizes of a key and value twice: as cached and as seen by a head.
    const int64_t key = m.integer("attention.key_length_mla", 1, 65536).value_or(h.key_length);
    value = {m.integer("attention.value_length_mla", 1, 65536).value_or(h.value_length),
             "attention.value_length_mla or value_length"};
    rotated = {h.rope_dimensions, "rope.dimension_count"};
    if (rotated.value < 1 || key <= rotated.value)
        m.fail("rope.dimension_count", "is not between 1 and the length of a key");
    plain = {key - rotated.value, "attention.key_length_mla or key_length - rope.dimension_count"};
    // YaRN's temperature acts on the scores here, not on the rotations. (The key is 0.1 * mscale_all_dim.)
    const double factor = m.real("rope.scaling.factor", 0).value_or(1),
                 multiplier = m.real("rope.scaling.yarn_log_multiplier").value_or(0);
    const double gain = factor > 1 ? 1 + multiplier * std::log(factor) : 1;
    scale = static_cast<float>(gain * gain / std::sqrt(static_cast<double>(key)));
    // Mistral Large 3 and Small 4: queries grow with the logarithm of their position.
    temperature.beta = static_cast<float>(m.real("attention.temperature_scale").value_or(0));
    if (temperature.beta != 0)
        temperature.length =
            static_cast<int32_t>(m.required_integer("attention.temperature_length", 1, INT32_MAX));
}

// The indexers that choose the keys of sparse attention.
struct Indexers {
    Size heads, key;        // of index queries and keys
    int32_t top_k, rope;    // the number of keys that a token attends to; index into ropes
    std::vector<bool> own;  // per layer: whether it has an indexer; else it uses the last layer's choice
};

class LatentAttention {
  public:
    LatentAttention(Builder &builder, int32_t layer, int32_t rope, const Indexers *indexers = nullptr)
        : b_(builder),
          block_("blk." + std::to_string(layer) + "."),
          prefix_(block_ + "attn_"),
          rope_(rope),
          indexers_(indexers),
          indexes_(indexers != nullptr && indexers->own[static_cast<size_t>(layer)]),
          l_(builder) {}

    void emit(const SubLayer &sublayer) {
        const Slot q = project(sublayer.in);
        if (indexes_) index(sublayer.in);
        const auto [k, v] = head_matrices();
        const int64_t q_head = l_.q_head(), width = l_.width(), rank = l_.rank.value;
        const Slot query = b_.slot("latent queries", l_.heads * width), key = b_.slot("latent keys", width),
                   sum = b_.slot("latent sums", l_.heads * rank),
                   attended = b_.slot("attended", l_.heads * l_.value.value);
        b_.add(HeadLinear{q, query, {0, q_head}, {0, width}, k});
        b_.add(Copy{q,
                    query,
                    {l_.plain.value, q_head},
                    {rank, width},
                    static_cast<int32_t>(l_.heads),
                    l_.rotated.value});
        b_.add(Copy{.in = c(), .out = key, .from = {}, .to = {}, .width = rank});
        b_.add(Copy{.in = r(), .out = key, .from = {}, .to = {rank, 0}, .width = l_.rotated.value});
        b_.add(Attention{.q = query,
                         .k = key,
                         .v = kNoSlot,
                         .out = sum,
                         .cache = b_.cache_layer({1, static_cast<int32_t>(width), 0}, 0),
                         .heads = static_cast<int32_t>(l_.heads),
                         .kv_heads = 1,
                         .head_dim_k = static_cast<int32_t>(width),
                         .head_dim_v = static_cast<int32_t>(rank),
                         .scale = l_.scale,
                         .rope = rope_,
                         .temperature = l_.temperature,
                         .chosen = indexers_ == nullptr ? kNoSlot : chosen()});
        b_.add(HeadLinear{sum, attended, {0, rank}, {0, l_.value.value}, v});
        b_.add(Linear{attended,
                      {{b_.matrix(prefix_ + "output.weight", width_,
                                  {l_.heads * l_.value.value,
                                   "attention.head_count * attention.value_length_mla or value_length"}),
                        kNoWeight, sublayer.out, sublayer.add, sublayer.scale}}});
    }

  private:
    Slot c() { return b_.slot("latent", l_.rank.value); }
    Slot r() { return b_.slot("rotated key", l_.rotated.value); }
    Slot latent_q() { return b_.slot("latent q", l_.q_rank); }
    Slot chosen() { return b_.slot("chosen cells", indexers_->top_k); }
    void norm(const std::string &name, Slot slot, Size size) {
        b_.add(Norm{slot, slot, b_.vector(prefix_ + name + ".weight", size), b_.hyper().norm_epsilon});
    }

    // q, and the two parts of the latent key. Returns q's slot.
    Slot project(Slot in) {
        const Size q_size{l_.heads * l_.q_head(),
                          "attention.head_count * attention.key_length_mla or key_length"},
            q_rank{l_.q_rank, "attention.q_lora_rank"};
        const Slot q = b_.slot("q", q_size.value);
        Linear first = b_.split(prefix_ + "kv_a_mqa", width_, false, in, {{l_.rank, c()}, {l_.rotated, r()}});
        if (l_.q_rank == 0) {
            first.parts.push_back({b_.matrix(prefix_ + "q.weight", q_size, width_), kNoWeight, q, kNoSlot});
            b_.add(first);
        } else {
            const Slot latent = latent_q();
            first.parts.push_back(
                {b_.matrix(prefix_ + "q_a.weight", q_rank, width_), kNoWeight, latent, kNoSlot});
            b_.add(first);
            norm("q_a_norm", latent, q_rank);
            b_.add(
                Linear{latent, {{b_.matrix(prefix_ + "q_b.weight", q_size, q_rank), kNoWeight, q, kNoSlot}}});
        }
        norm("kv_a_norm", c(), l_.rank);
        return q;
    }

    // Chooses the cells that the tokens attend to. `in`: the layer's input.
    void index(Slot in) {
        const Indexers &all = *indexers_;
        const std::string prefix = block_ + "indexer.";
        const int64_t heads = all.heads.value, key = all.key.value;
        const Slot q = b_.slot("index queries", heads * key), k = b_.slot("index key", key),
                   weights = b_.slot("index weights", heads);
        const Size rows{heads * key, "attention.indexer.head_count * attention.indexer.key_length"},
            q_rank{l_.q_rank, "attention.q_lora_rank"};
        const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(heads * key)));
        b_.add(Linear{latent_q(),
                      {{b_.matrix(prefix + "attn_q_b.weight", rows, q_rank), kNoWeight, q, kNoSlot}}});
        b_.add(Linear{
            in,
            {{b_.matrix(prefix + "attn_k.weight", all.key, width_), kNoWeight, k, kNoSlot},
             {b_.matrix(prefix + "proj.weight", all.heads, width_), kNoWeight, weights, kNoSlot, scale}}});
        constexpr float kEpsilon = 1e-6f;  // files have no key for it
        b_.add(Norm{.in = k,
                    .out = k,
                    .weight = b_.vector(prefix + "k_norm.weight", all.key),
                    .eps = kEpsilon,
                    .kind = Norm::Kind::Layer,
                    .bias = b_.vector(prefix + "k_norm.bias", all.key)});
        b_.add(Indexer{.q = q,
                       .k = k,
                       .weights = weights,
                       .chosen = chosen(),
                       .cache = b_.cache_layer({1, static_cast<int32_t>(key), 0, 0, true}, 0),
                       .heads = static_cast<int32_t>(heads),
                       .head_dim = static_cast<int32_t>(key),
                       .top_k = all.top_k,
                       .rope = all.rope});
    }

    // K^T [heads][rank][plain] and V [heads][value][rank].
    std::pair<WeightId, WeightId> head_matrices() {
        const Size heads{l_.heads, "attention.head_count"};
        const std::string joint = prefix_ + "kv_b.weight";
        if (b_.has(prefix_ + "k_b.weight")) {
            b_.ignore(joint);
            return {b_.matrices(prefix_ + "k_b.weight", heads, l_.rank, l_.plain),
                    b_.matrices(prefix_ + "v_b.weight", heads, l_.value, l_.rank)};
        }
        return take_apart(joint);
    }
    std::pair<WeightId, WeightId> take_apart(const std::string &name) {
        const size_t heads = static_cast<size_t>(l_.heads), rank = static_cast<size_t>(l_.rank.value),
                     plain = static_cast<size_t>(l_.plain.value), value = static_cast<size_t>(l_.value.value);
        const std::vector<float> all =
            b_.values(name,
                      {l_.heads * (l_.plain.value + l_.value.value),
                       "attention.head_count * (key_length - rope.dimension_count + value_length)"},
                      l_.rank);
        std::vector<float> k(heads * rank * plain), v(heads * value * rank);
        for (size_t h = 0; h < heads; ++h) {
            const float *of_head = all.data() + h * (plain + value) * rank;
            for (size_t i = 0; i < plain; ++i)
                for (size_t j = 0; j < rank; ++j) k[(h * rank + j) * plain + i] = of_head[i * rank + j];
            std::copy_n(of_head + plain * rank, value * rank, v.data() + h * value * rank);
        }
        return {b_.constant(name + " (keys)", std::move(k), l_.heads, l_.rank.value, l_.plain.value),
                b_.constant(name + " (values)", std::move(v), l_.heads, l_.value.value, l_.rank.value)};
    }

    Builder &b_;
    std::string block_, prefix_;
    int32_t rope_;
    const Indexers *indexers_;  // null: all keys are attended to
    bool indexes_;              // the layer has an indexer
    Latent l_;
    Size width_{b_.hyper().embedding_length, "embedding_length"};
};

// GLM-4.7-Flash files may lack the key; the vocabulary distinguishes them from DeepSeek V2.
ExpertTraits::Score default_score(const HyperParameters &h) {
    const bool flash = (h.block_count == 47 || h.block_count == 48) && h.vocab == 154880;
    return flash ? ExpertTraits::Score::Sigmoid : ExpertTraits::Score::Softmax;
}

// Latent attention in every layer, with ropes[rope].
DecoderTraits latent_attention(Builder &b, int32_t rope, const Indexers *indexers = nullptr) {
    b.program().ropes[static_cast<size_t>(rope)].first = static_cast<int32_t>(Latent(b).rank.value);
    return {.attention = [rope, indexers](Builder &builder, int32_t layer, const SubLayer &sublayer) {
        LatentAttention(builder, layer, rope, indexers).emit(sublayer);
    }};
}

// YaRN's magnitude is part of Latent::scale.
int32_t plain_rope(Builder &b, RopeTable::Pairs pairs) {
    const int32_t rope = b.rope(pairs);
    b.program().ropes[static_cast<size_t>(rope)].magnitude = 1;
    return rope;
}

void emit(Builder &b, ExpertTraits::Score default_of_file, const Indexers *indexers = nullptr) {
    DecoderTraits traits = latent_attention(b, plain_rope(b, RopeTable::Pairs::Adjacent), indexers);
    with_experts(traits, {.score = default_of_file});
    emit_decoder(b, traits);
}

constexpr const char *kTopK = "attention.indexer.top_k";

// The layers with an indexer of their own.
std::vector<bool> own_indexers(const Builder &b) {
    const auto layers = static_cast<size_t>(b.hyper().block_count);
    std::vector<bool> own(layers, true);
    if (b.hyper().architecture != "glm-dsa") return own;
    const char *key = "attention.indexer.types";
    if (const auto types = b.metadata().integers(key, b.hyper().block_count, 0, 1)) {
        for (size_t i = 0; i < layers; ++i) own[i] = (*types)[i] != 0;
        if (!own[0]) b.metadata().fail(key, "the first layer has no indexer");
    } else if (b.hyper().context_length >= 1 << 20) {  // GLM-5.2: layers 0, 1, 2, 6, 10, ...
        for (size_t i = 2; i < layers; ++i) own[i] = i % 4 == 2;
    }
    return own;
}

Indexers read_indexers(Builder &b, int32_t top_k) {
    const Metadata &m = b.metadata();
    constexpr int64_t kMostCells = 1 << 24;  // Indexer writes their numbers as floats
    if (b.chosen_context() > kMostCells)
        m.fail(kTopK, "contexts longer than " + std::to_string(kMostCells) + " tokens are not supported");
    const char *heads = "attention.indexer.head_count", *key = "attention.indexer.key_length";
    Indexers indexers{{m.required_integer(heads, 1, 65536), heads},
                      {m.required_integer(key, 1, 65536), key},
                      top_k,
                      -1,
                      own_indexers(b)};
    if (b.hyper().rope_dimensions > indexers.key.value)
        m.fail(key, "is smaller than " + b.hyper().architecture + ".rope.dimension_count");
    if (m.integer("attention.q_lora_rank", 0, 65536).value_or(0) == 0)
        m.fail("attention.q_lora_rank", "an indexer reads latent queries, and there are none");
    // The first dimensions are rotated, in other pairs than those of attention in deepseek32.
    const bool adjacent = b.hyper().architecture == "glm-dsa";
    indexers.rope = plain_rope(b, adjacent ? RopeTable::Pairs::Adjacent : RopeTable::Pairs::Halves);
    return indexers;
}

// The tensors and keys of indexers that the program does not have; null: it has none.
void ignore_indexers(Builder &b, const Indexers *indexers) {
    if (indexers == nullptr)
        for (const char *unused : {"head_count", "key_length", "types"})
            (void)b.metadata().find(std::string("attention.indexer.") + unused);
    for (int32_t i = 0; i < b.hyper().block_count; ++i)
        for (const char *name :
             {"k_norm.weight", "k_norm.bias", "proj.weight", "attn_k.weight", "attn_q_b.weight"})
            if (indexers == nullptr || !indexers->own[static_cast<size_t>(i)])
                b.ignore("blk." + std::to_string(i) + ".indexer." + name);
}

}  // namespace

// deepseek2 and mistral4 (Mistral Small 4).
void emit_deepseek2(Builder &b) {
    emit(b, default_score(b.hyper()));
}

// deepseek32 (DeepSeek V3.2) and glm-dsa (GLM-5). A token attends to the top_k keys that an indexer chooses. With
// at most top_k tokens that is all of them: without a longer context, the program has no indexer.
void emit_sparse_deepseek2(Builder &b) {
    const int64_t top_k = b.metadata().required_integer(kTopK, 1, INT32_MAX);
    std::optional<Indexers> indexers;
    if (b.chosen_context() <= top_k)
        b.limit_context(top_k);
    else if (!b.draft_block())
        indexers = read_indexers(b, static_cast<int32_t>(top_k));
    ignore_indexers(b, indexers ? &*indexers : nullptr);
    emit(b, ExpertTraits::Score::Sigmoid, indexers ? &*indexers : nullptr);
}

// minicpm3: MiniCPM 3 4B. Dense. Files lack its scales of embeddings, residual branches and logits.
void emit_minicpm3(Builder &b) {
    const HyperParameters &h = b.hyper();
    DecoderTraits traits = latent_attention(b, b.rope(RopeTable::Pairs::Halves));
    traits.embedding_scale = 12;
    traits.residual_scale = 1.4 / std::sqrt(double(h.block_count));
    traits.logit_scale = 256 / double(h.embedding_length);
    emit_decoder(b, traits);
}

}  // namespace runnel::model
