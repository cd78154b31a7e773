// What the RWKV families share: the token shift, heads, and the steps of their time and channel mixing.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/mixer.h"

namespace runnel::model {

// The width of a head (wkv.head_size).
inline int64_t rwkv_head_size(const Builder &b) {
    const int64_t head = b.metadata().required_integer("wkv.head_size", 1, kMaxKeyDims);
    if (b.hyper().embedding_length % head != 0)
        b.metadata().fail("wkv.head_size", "does not divide embedding_length");
    return head;
}

// Refuses a token_shift_count other than `count`: how many times a layer reads the input of the token before.
inline void check_token_shifts(const Builder &b, int64_t count) {
    (void)b.metadata().integer("token_shift_count", count, count);
}

// Weights that all layers share.
struct RwkvWeights {
    explicit RwkvWeights(Builder &b) {
        const int64_t width = b.hyper().embedding_length, head = rwkv_head_size(b);
        std::vector<float> taps(static_cast<size_t>(2 * width), 0.0f);
        std::fill_n(taps.begin(), width, 1.0f);
        before = b.constant("token shift", std::move(taps), 1, 2, width);
        one = b.constant("one", {1.0f}, 1, 1, 1);
        std::vector<float> ones(static_cast<size_t>(width), 1.0f);
        repeat = b.constant("ones of heads", std::move(ones), width / head, head, 1);
    }
    kernels::WeightId before;  // of a convolution that gives the input of the token before
    kernels::WeightId one;     // one number
    kernels::WeightId repeat;  // a column of ones per head
};

// The layer norm after the embeddings.
inline void norm_embeddings(Builder &b, kernels::Slot x) {
    const Size width{b.hyper().embedding_length, "embedding_length"};
    b.add(kernels::Norm{.in = x,
                        .out = x,
                        .weight = b.vector("token_embd_norm.weight", width),
                        .eps = b.hyper().norm_epsilon,
                        .kind = kernels::Norm::Kind::Layer,
                        .bias = b.vector("token_embd_norm.bias", width)});
}

// The base of time and channel mixing.
class RwkvMixer : protected Mixer {
  public:
    RwkvMixer(Builder &builder, int32_t layer, const RwkvWeights &shared)
        : Mixer(builder, layer),
          shared_(shared),
          head_(rwkv_head_size(b_)),
          heads_(static_cast<int32_t>(width_.value / head_)) {}

  protected:
    using Slot = kernels::Slot;
    using WeightId = kernels::WeightId;

    Slot wide(const std::string &what) { return b_.slot("rwkv " + what, width_.value); }
    WeightId vector(const std::string &tensor) { return b_.vector(name(tensor + ".weight"), width_); }
    void multiply(Slot a, Slot b, Slot out) {
        b_.add(kernels::Activation{a, b, out, kernels::Activation::Kind::Identity});
    }

    // The input of the token before; zeros for the first token of a sequence.
    Slot token_before(Slot x) {
        const Slot before = wide("token before");
        b_.add(kernels::ShortConv{
            .in = x, .out = before, .weight = shared_.before, .state = b_.state_layer(width_.value)});
        return before;
    }
    // out[i] = x + c_i * (before - x), with the i-th row of a tensor for c_i.
    void shift(const std::string &tensor, Slot x, Slot before, std::vector<Slot> out) {
        const Size rows{static_cast<int64_t>(out.size()), "the number of interpolations"};
        const WeightId weight = b_.flat_vector(name(tensor + ".weight"), rows, width_);
        b_.add(kernels::Lerp{.from = x, .to = before, .out = std::move(out), .weight = weight});
    }
    // v times the sum, over the head, of r k and a vector of the file
    Slot bonus(Slot r, Slot k, Slot v, const std::string &tensor) {
        const Slot products = wide("r k"), sums = b_.slot("rwkv sums", heads_), out = wide("bonus");
        multiply(r, k, products);
        const std::string full = name(tensor + ".weight");
        std::vector<float> values = b_.values(full, rows_of_heads(full), cols_of_heads(full));
        const WeightId weights = b_.constant(full, std::move(values), heads_, 1, head_);
        b_.add(kernels::HeadLinear{products, sums, {0, head_}, {0, 1}, weights});
        b_.add(kernels::HeadLinear{sums, out, {0, 1}, {0, head_}, shared_.repeat});
        multiply(out, v, out);
        return out;
    }
    // The layer norm of each head, time_mix_ln, then + add.
    void norm_heads(Slot slot, Slot add) {
        b_.add(kernels::Norm{.in = slot,
                             .out = slot,
                             .weight = vector("time_mix_ln"),
                             .eps = 64e-5f,
                             .kind = kernels::Norm::Kind::Layer,
                             .bias = b_.vector(name("time_mix_ln.bias"), width_),
                             .add = add,
                             .parts = heads_});
    }
    Slot sum_of(Slot a, Slot b) {
        const Slot sum = wide("sum");
        b_.add(kernels::Mix{.in = {a, b}, .out = {sum}, .width = width_.value});
        return sum;
    }

    const RwkvWeights &shared_;
    int64_t head_;
    int32_t heads_;

  private:
    // A vector of all heads may be a matrix with a row per head.
    bool by_head(const std::string &tensor) const { return b_.rows_of(tensor) == heads_ && heads_ > 1; }
    Size rows_of_heads(const std::string &tensor) const {
        return by_head(tensor) ? Size{heads_, "the number of heads"} : Size{1, "a vector"};
    }
    Size cols_of_heads(const std::string &tensor) const {
        return by_head(tensor) ? Size{head_, "wkv.head_size"} : width_;
    }
};

}  // namespace runnel::model
