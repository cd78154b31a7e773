// What a model computes: a flat list of steps that every device can execute.
//
// A model family does not implement a forward pass, it emits one as a Program. A Program works on
// *slots*: named activations of shape [tokens][width] in float32, where `tokens` is the size of the
// current batch (a prefill chunk, one decoded token, or drafts to verify). Steps read and write whole
// slots, in order. A Program does not depend on the batch: positions, sequence lengths and block tables
// come with the Batch (backend.h). A device can therefore plan, fuse or capture the list once and run it
// for every batch.
//
// The steps are described here, in attention_steps.h and in recurrent_steps.h.
//
// Shapes: a Weight is [rows][cols], row-major, one row per output element, quantized along cols.
// Conventions are ggml's: y = W x, GQA maps query head h to K/V head h / (heads / kv_heads).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/attention_steps.h"
#include "kernels/recurrent_steps.h"
#include "kernels/step.h"

namespace runnel::kernels {

// out[t] = scale * table[token[t]] (+ positions[min(position[t], rows - 1)]). Without a table, out is one float: the token's
// id + 1.
struct Embed {
    WeightId table;  // or kNoWeight
    Slot out;
    float scale = 1;
    WeightId positions = kNoWeight;  // learned position embeddings, [positions][width]
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.writes(out), tell.row(table), tell.row(positions); }
};

// Rows of a table that a hash of the last n tokens chooses. tokens: [t][n], the ids + 1 of a token and of the n - 1 before it, the
// newest first; 0 where there is none. For every head, out[t] has a row of the table, one after the other:
//   row = offset + (m_0 id_0 xor m_1 id_1 xor ... xor m_(g-1) id_(g-1)) mod size
// in unsigned 64-bit arithmetic, with the head's offset and size, and the multipliers m; the first heads_per_gram heads hash g = 2
// tokens, the next ones 3, and so on up to n. From the first earlier token on that is missing or is `end`, id is `end`.
// (The n-gram embeddings of Qwen3.8's qwen4exp, 2026.)
struct HashedEmbed {
    struct Head {
        uint64_t offset, size;  // size > 0; offset + size is at most the number of rows
    };
    struct Hash {
        std::vector<uint64_t> multipliers;  // n > 1
        std::vector<Head> heads;            // (n - 1) * heads_per_gram
        int32_t heads_per_gram;
        int32_t end;  // a token's id
    };
    // The row that a head chooses. tokens: [n].
    static size_t row(const Hash &hash, const float *tokens, size_t head);
    Slot tokens, out;
    WeightId table;  // [rows][width of out / heads]
    std::shared_ptr<const Hash> hash;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.reads(tokens), tell.writes(out), tell.row(table); }
};

// out[t] = scale * (norm(in[t]) (+ add[t])), where norm() takes the whole row, or each of `parts` equal
// slices of the row separately:
//   Rms:   weight * x / sqrt(mean(x^2) + eps) (+ bias)                      (Zhang & Sennrich 2019)
//   Layer: weight * (x - m) / sqrt(mean((x - m)^2) + eps) (+ bias), m = mean(x)    (Ba et al. 2016)
// out may be the same slot as in or add, or as both.
struct Norm {
    enum class Kind { Rms, Layer };
    Slot in, out;
    WeightId weight;  // F32, [1][width] or [1][width / parts] shared by all slices; kNoWeight: ones
    float eps;
    Kind kind = Kind::Rms;
    WeightId bias = kNoWeight;  // F32, of the same size as weight
    Slot add = kNoSlot;         // the residual stream, for a norm after a block
    int32_t parts = 1;
    float scale = 1;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.reads(add), tell.writes(out);
        tell.vector(weight, Use{}), tell.vector(bias, Use{});
    }
};

// For every part: out[t] = scale * (W in[t] + bias) + add[t]. All parts read the same input, so a device can
// quantize it once. `add` may be the same slot as `out` (a residual stream updated in place).
struct Linear {
    struct Part {
        WeightId weight;
        WeightId bias;  // [1][rows], F32, or kNoWeight
        Slot out;
        Slot add;  // or kNoSlot
        float scale = 1;
    };
    Slot in;
    std::vector<Part> parts;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in);
        for (const Part &part : parts) tell.reads(part.add), tell.writes(part.out);
        for (const Part &part : parts) tell.matrix(part.weight, Use{}), tell.vector(part.bias, Use{});
    }
};

// Equal slices of a row: slice i begins at first + i * stride. A stride of 0 repeats one slice.
struct StridedSlices {
    int64_t first = 0, stride = 0;
};

// For every head i: slice i of out[t] = W_i (slice i of in[t]). Multi-head latent attention moves these
// matrices from keys and values to queries and outputs (DeepSeek-V2, 2024).
struct HeadLinear {
    Slot in, out;
    StridedSlices from, to;
    WeightId weight;  // count = heads, [width of an output slice][width of an input slice]
    // Each row is one range of the columns of a longer row: its products are added as that range is (column_cut.h). Only GPUs
    // run this.
    bool one_range = false;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.reads(out), tell.writes(out);
        tell.matrix(weight, Use{});
    }
};

// For every i < count: slice i of out[t] = slice i of in[t], `width` floats each. in and out differ.
struct Copy {
    Slot in, out;
    StridedSlices from, to;
    int32_t count = 1;
    int64_t width;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.reads(in), tell.reads(out), tell.writes(out); }
};

// Multiplies a row by signs s and by the Walsh-Hadamard matrix of each of its blocks (Sylvester's order), divided by
// sqrt(block):
//   out[t] = H (s in[t]), or with signs_last: out[t] = s (H in[t])
// All devices compute the same bits, in float32: sums and differences of elements 1, 2, 4, ..., block / 2 apart, then a
// multiplication by 1 / sqrt(block), rounded. out may be in. (Weights that are stored rotated: PrismML's Ternary-Bonsai-2.)
struct Rotate {
    Slot in, out;                // of the same width
    int32_t block;               // a power of two that divides the width
    WeightId signs = kNoWeight;  // F32, [1][width], each 1 or -1; none: all are 1
    bool signs_last = false;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.writes(out);
        tell.vector(signs, Use{});
    }
};

// Sums of slices, with weights of each token. The slots of `in`, one after the other, consist of n slices of `width`
// floats, those of `out` of m slices. For every j < m:
//   slice j of out[t] = scale * (sum over i < n of coefficients[t][j * n + i] * slice i of in[t])
// This mixes residual streams (AltUp: Baykal et al. 2023); with n = m = 1, it multiplies a row by a number. Without coefficients
// it adds slices, one after the other from the first one on, in float32.
struct Mix {
    static constexpr int32_t kMostSlices = 9;  // n and m are at most this
    std::vector<Slot> in, out;    // no slot is in both, but without coefficients the only slice of `out`
    int64_t width;                // divides the width of every slot of in and out
    Slot coefficients = kNoSlot;  // [t][m * n]; none: all are 1
    float scale = 1;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        for (const Slot slot : in) tell.reads(slot);
        tell.reads(coefficients);
        for (const Slot slot : out) tell.writes(slot);
    }
};

// The coefficients by which n residual streams are read, written and mixed, from a row x of a matrix product (manifold-
// constrained hyper-connections: Xie et al. 2026; DeepSeek-V4). With scales s and biases b:
//   read[t][i] = sigmoid(s_0 x_i + b_i) + eps,  write_i = 2 sigmoid(s_1 x_(n+i) + b_(n+i)),  i < n
//   C = softmax of each row of the n x n matrix s_2 x + b (the rest of x and b, row-major), + eps; then every column of C is
//   divided by (its sum + eps), and `iterations` - 1 times every row likewise and again every column, so that C is nearly
//   doubly stochastic
//   mix[t] = for every stream j: C_(0,j), ..., C_(n-1,j), write_j: coefficients of a Mix of the streams and one more slice
// Without `mix`, x is n wide and only `read` is computed.
struct StreamWeights {
    static constexpr int32_t kMostStreams = 7;  // n
    Slot in;                                    // [t][n * (n + 2)], or [t][n]
    Slot read;                                  // [t][n]
    Slot mix = kNoSlot;                         // [t][n * (n + 1)]
    WeightId scales;                            // F32, [1][3], or [1][1] without `mix`
    WeightId bias;                              // F32, as wide as `in`
    float eps;
    int32_t iterations = 1;
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.writes(read), tell.writes(mix);
        tell.vector(scales, Use{}), tell.vector(bias, Use{});
    }
};

// Interpolation of rows, element by element, with one set of coefficients c per output:
//   out[i][t] = from[t] + c * (to[t] - from[t]);  a missing `from` or `to` is all zeros
// c is the sum of a row of `weight` and a slice of `coefficients`, or one of them. (RWKV's token shift, Peng et al. 2023,
// and its other interpolations.)
struct Lerp {
    static constexpr int32_t kMostOutputs = 8;
    Slot from, to;                // one of them may be kNoSlot
    std::vector<Slot> out;        // as wide as from and to; one alone may be one of them
    WeightId weight = kNoWeight;  // F32, [outputs][width]
    Slot coefficients = kNoSlot;  // [t][outputs * width]
    int32_t layer = -1;

    Slot in() const { return to != kNoSlot ? to : from; }  // as wide as the outputs

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(from), tell.reads(to), tell.reads(coefficients);
        for (const Slot slot : out) tell.writes(slot);
        tell.vector(weight, Use{});
    }
};

// out[t] = act(gate[t]) * up[t], or act(gate[t]) without `up`. out may be gate or up.
//   Silu: x / (1 + exp(-x))
//   GeluTanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)));  GeluErf: x / 2 * (1 + erf(x / sqrt(2)))
//   ReluSquared: max(x, 0)^2
//   SiluClamped: with g = min(gate, 7), u = min(max(up, -7), 7): g / (1 + exp(-1.702 g)) * (u + 1); needs up
//   (gpt-oss);  Sigmoid: 1 / (1 + exp(-x));  Identity: x;  Relu: max(x, 0);  Tanh: tanh(x)
//   SiluThenLimit: min(Silu(gate), positive) * min(max(up, -positive), positive);  LimitThenSilu: the same with
//   Silu(min(gate, positive)); both need up (Step 3.5; Maple)
//   Clamp: min(max(x, negative), positive);  SignedRoot: sign(x) * sqrt(max(|x|, positive)), 0 for x = 0
//   XIelu: positive * x^2 + beta * x for x > 0, else negative * (exp(min(x, eps)) - 1 - x) + beta * x
//   (Huang & Schlag 2025; Apertus)
struct Activation {
    enum class Kind {
        Silu,
        GeluTanh,
        GeluErf,
        ReluSquared,
        SiluClamped,
        Sigmoid,
        Identity,
        Relu,
        Clamp,
        XIelu,
        SiluThenLimit,
        LimitThenSilu,
        Tanh,
        SignedRoot
    };
    struct Parameters {  // of Clamp, XIelu, SignedRoot, SiluThenLimit and LimitThenSilu
        float positive = 0, negative = 0, beta = 0, eps = 0;
    };
    Slot gate, up, out;
    Kind act = Kind::Silu;
    Parameters parameters = {};
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const { tell.reads(gate), tell.reads(up), tell.writes(out); }
};

// Whether the output is proportional to `up`.
constexpr bool is_linear_in_up(Activation::Kind kind) {
    using Kind = Activation::Kind;
    return kind != Kind::SiluClamped && kind != Kind::SiluThenLimit && kind != Kind::LimitThenSilu;
}

// Chooses the `used` experts of a token and their weights w from its router logits l:
//   1. p = softmax(l), or sigmoid(l), or sqrt(ln(1 + exp(l))) (SqrtSoftplus), or l itself (SelectedSoftmax, SparseMixer);
//   2. s = p + selection_bias; without a bias and groups s = l, which has the same order;
//   3. groups > 1: the experts form that many groups of neighbors; a group's score is the sum of its
//      `group_best` largest s, and only the experts of the `groups_used` best groups remain;
//   4. the `used` experts with the largest s are chosen, the lower index among equals;
//   5. w = p of the chosen experts, without the bias; SelectedSoftmax: the softmax over the chosen logits alone;
//      SparseMixer: w = 1 / sum of exp(l_i - l) over the expert itself and each i that comes after it in the order of
//      4 and is near: l - l_i <= kNear * max(|l_i|, l);
//   6. normalize: w /= max(sum of the chosen w, 2^-14);  7. w *= scale;  8. w_e *= expert_scales[e].
// Where a step names the experts itself (Experts::chosen), 2 to 4 are left out.
// (Shazeer et al. 2017; groups and bias: DeepSeek-V3, 2024; SparseMixer, which has neither: arXiv:2409.12136; SqrtSoftplus:
// DeepSeek-V4, 2026.)
struct Routing {
    enum class Score { Softmax, Sigmoid, SelectedSoftmax, SparseMixer, SqrtSoftplus };
    static constexpr float kNear = 0.02f;  // of SparseMixer
    Score score = Score::Softmax;
    int32_t used;
    WeightId selection_bias = kNoWeight;  // F32, [1][experts]
    int32_t groups = 1, groups_used = 1, group_best = 2;
    bool normalize = false;
    float scale = 1;
    WeightId expert_scales = kNoWeight;  // F32, [1][experts]; none: ones
};

// A mixture of experts. The router is a Linear step before it; a shared expert consists of ordinary steps.
//   out[t] = add[t] + sum of w_e * (Wdown_e h_e + bdown_e)  over the chosen experts e in ascending order,
//   h_e = act(sgate_e Wgate_e x + bgate_e) * (sup_e Wup_e x + bup_e),  x = in[t].
// With weights_on_input, Wgate_e x and Wup_e x are multiplied by w_e s_e instead, and Wdown_e h_e by 1 (Llama 4).
// Biases are F32: for each expert, a matrix of one row.
//
// Devices that each have some rows of the matrices (tensor_program.h) run it as two steps, with the same logits:
//   without `down`, out[t] = h_e of the chosen experts in ascending order, [used][width]; there is no `add`;
//   without `gate` and `up`, in[t] is that, all rows of it.
// The slot of h has a multiple of kHiddenUnit floats, so that the h_e of a batch are evenly spaced.
struct Experts {
    static constexpr int64_t kHiddenUnit = 64;  // devices may pad the rows of a slot to multiples of this
    Slot in;
    Slot logits;  // [t][experts], from the router
    Slot out;
    Slot add = kNoSlot;     // may be `out`
    Slot chosen = kNoSlot;  // [t][used]: numbers of different experts, ascending; none: `routing` chooses
    Routing routing;
    WeightId gate;            // count = experts; [width][cols], or [2 * width][cols]: gate, then up
    WeightId up = kNoWeight;  // [width][cols]; none: `gate` holds both, or there is no `up`
    WeightId down;            // [rows][width]
    WeightId gate_bias = kNoWeight, up_bias = kNoWeight, down_bias = kNoWeight;  // count = experts
    // F32, [1][experts]; none: ones. Without `up`, gate_scales holds the factors of all rows of `gate`.
    WeightId gate_scales = kNoWeight, up_scales = kNoWeight;
    Activation::Kind act = Activation::Kind::Silu;
    Activation::Parameters parameters = {};
    bool weights_on_input = false;
    int32_t layer = -1;

    WeightId stack() const { return down != kNoWeight ? down : gate; }  // one that is there

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in), tell.reads(logits), tell.reads(add), tell.reads(chosen), tell.writes(out);
        const Use some{routing.used, stack()};
        tell.matrix(gate, some), tell.matrix(up, some), tell.matrix(down, some);
        tell.vector(gate_bias, some), tell.vector(up_bias, some), tell.vector(down_bias, some);
        tell.vector(gate_scales, some), tell.vector(up_scales, some);
        tell.vector(routing.selection_bias, Use{}), tell.vector(routing.expert_scales, some);
    }
};

// logits[r] = scale * (W in[row r's token] + bias), with a soft-cap c then c * tanh(that / c). Computed only
// for the tokens whose logits the batch requests.
struct Logits {
    Slot in;
    WeightId weight;            // [vocab][width]
    WeightId bias = kNoWeight;  // F32, [1][vocab]
    float scale = 1;
    float softcap = 0;  // 0: none
    int32_t layer = -1;

    static constexpr bool kMixesTokens = false;
    void describe(auto &tell) const {
        tell.reads(in);
        tell.matrix(weight, Use{.logit_rows = true}), tell.vector(bias, Use{});
    }
};

using Step = std::variant<Embed, HashedEmbed, Norm, Linear, HeadLinear, Copy, Rotate, Mix, StreamWeights,
                          Lerp, Rope, Attention, JoinAttention, Indexer, Activation, Experts, ShortConv,
                          SoftPool, ScanGate, LinearScan, SelectiveScan, Logits>;

template <class S>
concept DescribedStep = requires(S step, const S &fixed, StepVisitor &visitor) {
    { step.layer } -> std::same_as<int32_t &>;
    typename std::bool_constant<S::kMixesTokens>;
    fixed.describe(visitor);
};
template <class>
inline constexpr bool kAllDescribed = false;
template <class... S>
inline constexpr bool kAllDescribed<std::variant<S...>> = (DescribedStep<S> && ...);
static_assert(kAllDescribed<Step>, "a step lacks `layer`, describe() or kMixesTokens");

struct SlotInfo {
    std::string name;
    int64_t width;  // floats per token
};

// What one layer caches per token.
struct CacheLayer {
    int32_t kv_heads, head_dim_k;
    int32_t head_dim_v;     // 0: values are the first dimensions of the keys
    int32_t group = 0;      // layers of one group share block tables (and a window)
    bool f16_keys = false;  // of an Indexer: keys are stored in F16, whatever the cache's type
    bool divided =
        false;  // in a rank's program: the ranks have some ranges of the cells each (tensor_program.h)
};

// What one recurrent step keeps per sequence, independent of its length.
struct StateLayer {
    int64_t floats;  // 0 in a partition that does not run the step
};

struct Program {
    std::vector<Weight> weights;
    std::vector<std::shared_ptr<const std::vector<float>>> constants;  // of weights that no file holds
    std::vector<SlotInfo> slots;
    std::vector<RopeTable> ropes;
    std::vector<CacheLayer> cache_layers;
    std::vector<StateLayer> state_layers;
    std::vector<Step> steps;
    int64_t vocab = 0;  // rows of the output matrix
    // GPUs keep this many experts of each mixture in their memory and fetch the others from host memory when a token
    // chooses them (cuda/experts/expert_places.h); results are the same. 0: all. (A mixture of
    // which a token uses more has that many.)
    int32_t resident_experts = 0;

    // A device's partition of a split program (split_program.h) runs in parts, with steps of other devices in
    // between: part i is steps[parts[i - 1].end .. parts[i].end). The slots `in` are copied from other
    // devices before the part runs, the slots `out` to other devices after it (Backend::exchange). Slots,
    // weights, cache layers and ropes that the partition does not use are present with size 0.
    struct Part {
        size_t end;
        std::vector<Slot> in, out;
    };
    std::vector<Part> parts;                // empty: all steps are one part
    std::vector<Part> whole_parts() const;  // never empty

    // Bytes of weights read per decoded token: all matrices once, one row of the embedding table, and only
    // the experts that are used.
    size_t weight_bytes_per_token() const;
    // Multiply and add operations of all matrices except the output matrix, per prompt token. (Attention is
    // not counted: its cost grows with the context.)
    double operations_per_token() const;
    int64_t token_ids() const;  // rows of the embedding table: the number of valid token ids
    bool gives_logits() const;  // false for a partition without the Logits step
};

}  // namespace runnel::kernels
