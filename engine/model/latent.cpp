#include "engine/model/latent.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

class LatentAttention {
  public:
    LatentAttention(Builder &builder, int32_t layer, int32_t rope)
        : b_(builder), layer_(layer), prefix_(layer_prefix(layer) + "attn_"), rope_(rope), l_(builder) {}

    void emit(const SubLayer &sublayer, const LatentOptions &options) {
        const Slot q = project(sublayer.in);
        const Indexers *indexers = options.indexers;
        if (indexers != nullptr && indexers->in(layer_))
            emit_indexer(b_, *indexers, layer_, sublayer.in, latent_q(), q_rank());
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
                         .chosen = indexers == nullptr ? kNoSlot : chosen_cells(b_, *indexers)});
        b_.add(HeadLinear{sum, attended, {0, rank}, {0, l_.value.value}, v});
        if (options.head_gates) {
            const Size heads{l_.heads, "attention.head_count"};
            emit_head_gates(b_, b_.matrix(prefix_ + "gate.weight", heads, width_), sublayer.in, attended,
                            l_.heads, l_.value.value);
        }
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
    Size q_rank() const { return {l_.q_rank, "attention.q_lora_rank"}; }
    void norm(const std::string &name, Slot slot, Size size) {
        b_.add(Norm{slot, slot, b_.vector(prefix_ + name + ".weight", size), b_.hyper().norm_epsilon});
    }

    // q, and the two parts of the latent key. Returns q's slot.
    Slot project(Slot in) {
        const Size q_size{l_.heads * l_.q_head(),
                          "attention.head_count * attention.key_length_mla or key_length"};
        const Slot q = b_.slot("q", q_size.value);
        Linear first = b_.split(prefix_ + "kv_a_mqa", width_, false, in, {{l_.rank, c()}, {l_.rotated, r()}});
        if (l_.q_rank == 0) {
            first.parts.push_back({b_.matrix(prefix_ + "q.weight", q_size, width_), kNoWeight, q, kNoSlot});
            b_.add(first);
        } else {
            const Slot latent = latent_q();
            first.parts.push_back(
                {b_.matrix(prefix_ + "q_a.weight", q_rank(), width_), kNoWeight, latent, kNoSlot});
            b_.add(first);
            norm("q_a_norm", latent, q_rank());
            b_.add(Linear{latent,
                          {{b_.matrix(prefix_ + "q_b.weight", q_size, q_rank()), kNoWeight, q, kNoSlot}}});
        }
        norm("kv_a_norm", c(), l_.rank);
        return q;
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
    int32_t layer_;
    std::string prefix_;
    int32_t rope_;
    Latent l_;
    Size width_{b_.hyper().embedding_length, "embedding_length"};
};

}  // namespace

int32_t latent_rope(Builder &b, RopeTable::Pairs pairs) {
    const int32_t rope = b.rope(pairs);
    b.program().ropes[static_cast<size_t>(rope)].first = static_cast<int32_t>(Latent(b).rank.value);
    return rope;
}

void emit_latent_attention(Builder &b, int32_t layer, const SubLayer &sublayer, int32_t rope,
                           const LatentOptions &options) {
    LatentAttention(b, layer, rope).emit(sublayer, options);
}

}  // namespace runnel::model
