// The decoder block that most families share. Its base form is
//   h = x + Wo Attention(N x);  y = h + Wdown (act(Wgate N h) * Wup N h)
// A family describes its differences in a DecoderTraits, and emit_decoder() writes the steps. Two variants of
// tensors are recognized by their presence: attn_qkv (Q, K and V rows in one matrix), ffn_up with twice the
// rows and no ffn_gate (gate rows first). Without output.weight the embeddings are used.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/builder.h"
#include "engine/model/silu_limits.h"

namespace runnel::model {

// What the names of a layer's tensors begin with: "blk.3.".
std::string layer_prefix(int32_t layer);

// One half of a layer: reads `in`, writes out = scale * (what it computes) + add.
struct SubLayer {
    kernels::Slot in, out, add;  // add: or kNoSlot
    float scale = 1;
};

struct DecoderTraits {
    // How attention A and the feed-forward network F are added to the residual stream x; N are norms.
    enum class Block {
        PreNorm,   // h = x + A(N x);     y = h + F(N h)
        PostNorm,  // h = x + N A(x);     y = h + N F(h)
        Sandwich,  // h = x + N A(N x);   y = h + N F(N h)
        Parallel,  // y = x + A(N x) + F(N' x)
        // h = s N x + A(N x);  y = s N h + F(N h),  s: normed_residual_scale
        NormedResidual,
    };
    enum class HeadNorm {
        None,
        PerHead,           // RMS norm of each q and k head, weights shared by the heads, before RoPE
        PerHeadAfterRope,  // the same after RoPE
        WholeRow,          // RMS norm of all q heads together, and of all k heads
        OwnRmsNorm,        // RMS norm of each head with its own weights, [head size][heads]
        OwnLayerNorm,      // the same with a layer norm
        PlainAfterRope,    // RMS norm of each head without weights, after RoPE, on layers that have RoPE
        PlainWithGain,     // RMS norm of each head without weights; each q head has a gain, [heads]
    };
    // The attended values are multiplied by f(attn_gate x), x: A's input, f: the sigmoid, with a gate for each of
    // them or for each head. ByRows: one of the two, as the tensor of the layer shows.
    enum class Gates { None, PerValue, PerHead, ByRows };
    enum class Biases { WhenPresent, Qkv, All };  // which of the matrices' biases are required

    std::optional<kernels::RopeTable::Pairs> pairs = {};  // none: no RoPE
    double rope_base_factor = 1;                          // of rope.freq_base
    Block block = Block::PreNorm;
    kernels::Norm::Kind norm = kernels::Norm::Kind::Rms;
    bool norm_biases = false, norm_weights = true;  // which tensors a norm has
    double post_norm_epsilon = 0;                   // of the norms after both halves; 0: the file's
    HeadNorm head_norm = HeadNorm::None;
    Biases biases = Biases::WhenPresent;
    kernels::Activation::Kind act = kernels::Activation::Kind::Silu;
    std::vector<kernels::Activation::Parameters> act_parameters = {};  // by layer; for kinds with parameters
    SiluLimits silu_limits = {};
    bool gated = true;         // false: F(x) = Wdown act(Wup x)
    bool inner_norms = false;  // norms before the output matrices of A (attn_sub_norm) and F (ffn_sub_norm)
    bool learned_positions = false;  // position_embd.weight is added to the embeddings

    // Names of the norms' tensors, without ".weight". ffn_norm = "": F shares A's norm (Parallel only).
    std::string attn_norm = "attn_norm", attn_post_norm = "post_attention_norm";
    std::string ffn_norm = "ffn_norm", ffn_post_norm = "post_ffw_norm";
    std::string output_norm = "output_norm";
    bool one_half = false;  // a layer has the attention half only
    // Of the file's draft blocks (draft_block.h): whether their states are those before the last norm, and the
    // kind of their own last norm if it differs from `norm` (with attention.layer_norm_epsilon).
    bool draft_before_norm = false;
    std::optional<kernels::Norm::Kind> draft_norm = {};
    // The layers are computed this many times in turn; each pass has keys and values of its own.
    int32_t passes = 1;
    bool norm_between_passes = true;  // the output norm also follows every pass but the last

    // Sizes per layer; empty: the file's for all. A layer with 0 heads or 0 hidden units lacks that half.
    std::vector<int64_t> heads = {}, kv_heads = {}, hidden = {};

    // If `full` is not empty, layers are of two kinds: full[layer] or not.
    std::vector<bool> full = {};
    int64_t window = 0;  // of layers that are not full (all layers if `full` is empty); 0: none
    kernels::Attention::Window window_kind = kernels::Attention::Window::Sliding;
    bool rope_on_full = true;
    std::vector<bool> rotated = {};  // per layer: has RoPE; empty: rope_on_full decides
    int32_t rope_dimensions = 0;     // rotated by full layers; 0: rope.dimension_count
    // RoPE base of the layers that are not full; if set, their frequencies are not scaled.
    std::optional<double> window_rope_base = {};
    int32_t window_rope_dimensions = 0;  // of these layers; 0: rope.dimension_count

    double attention_scale = 0;  // 0: 1 / sqrt(head size); the file's `attention.scale` takes precedence
    double attention_softcap = 0, logit_softcap = 0;  // 0: none
    // With ALiBi, attention.max_alibi_bias: the exponents of 1/2 in the heads' slopes go up to it. 0: no ALiBi.
    double largest_alibi_bias = 0;
    double qkv_limit = 0;  // q, k and v are clamped to [-limit, limit]; 0: they are not
    Gates attention_gates = Gates::None;
    bool softplus_gates = false;     // f is ln(1 + exp(x))
    double attention_out_scale = 1;  // of A's output
    double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
    double normed_residual_scale = 1;
    kernels::Attention::Temperature temperature = {};  // of full layers (all layers if `full` is empty)

    // Called with the usual attention step of a layer before it is added: may change it, and add steps before it. in: the
    // input of the layer's attention half.
    std::function<void(Builder &, int32_t layer, kernels::Slot in, kernels::Attention &)> before_attention =
        {};
    // Emits the attention half of a layer instead of the usual one.
    std::function<void(Builder &, int32_t layer, const SubLayer &)> attention = {};
    // Emits the feed-forward half of a layer instead of the dense one.
    std::function<void(Builder &, int32_t layer, const SubLayer &)> feed_forward = {};
    // Emit steps after the embeddings, and after a layer; x: the residual stream.
    std::function<void(Builder &, kernels::Slot x)> after_embeddings = {};
    std::function<void(Builder &, int32_t layer, kernels::Slot x)> after_layer = {};
};

void emit_decoder(Builder &builder, const DecoderTraits &traits);

// The attention half of a layer, as emit_decoder() writes it, rotated by ropes[rope] (-1: not rotated).
// kv_heads: 0: attention.head_count_kv.
void emit_attention(Builder &builder, const DecoderTraits &traits, int32_t layer, const SubLayer &sublayer,
                    int32_t rope, int32_t kv_heads = 0);

// Multiplies each head's `width` attended values by f of its gate, which is a row of `matrix` times `in`. f: the
// sigmoid, or ln(1 + exp(x)) if `softplus`.
void emit_head_gates(Builder &builder, kernels::WeightId matrix, kernels::Slot in, kernels::Slot attended,
                     int64_t heads, int64_t width, bool softplus = false);

// The dense feed-forward half of a layer with `width` (0: feed_forward_length) hidden units.
void emit_feed_forward(Builder &builder, const DecoderTraits &traits, int32_t layer, const SubLayer &sublayer,
                       int64_t width = 0);

// Which layers are full. The default is one of every `period` layers: the last, or the first if `first` (period 0:
// none). The file's `attention.sliding_window_pattern` takes precedence: a period, or an array that is true for
// window layers. Draft layers are full unless the array has entries for them.
std::vector<bool> full_layers(const Builder &builder, int64_t period, bool first = false);

// The slopes of ALiBi's biases by head (Press et al. 2022): 2^(-largest i / n) for head i of the first n, counted
// from 1, and for the others every second one of those that 2n heads have; n is the largest power of two up to
// the number of heads.
std::vector<double> distance_slopes(int32_t heads, double largest);

// Values per layer, from a key with one number for all layers or one for each; `absent`: without the key.
std::vector<int64_t> by_layer(const Builder &builder, const char *key, int64_t low, int64_t high,
                              int64_t absent);

// The factors of Granite's embeddings, branches and logits (families/granite.cpp).
DecoderTraits granite_scales(const Builder &builder);

// RoPE of window layers: the file's base for them, or that of full layers; how many dimensions of a head they rotate.
double window_rope_base(const Builder &builder);
int32_t window_rope_dimensions(const Builder &builder);

// `attention.sliding_window`, or `absent`.
int64_t sliding_window(const Builder &builder, int64_t absent);

}  // namespace runnel::model
