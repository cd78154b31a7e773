// The token mixers of recurrent layers, which replace attention. Tensor names are those of llama.cpp's
// converter; sizes come from the ssm.* keys.
#pragma once

#include <functional>
#include <vector>

#include "engine/model/decoder.h"

namespace runnel::model {

// attention.head_count_kv per layer: 0 for a layer without attention.
std::vector<int32_t> kv_heads_of_layers(const Builder &builder);

// Which layers are recurrent: attention.recurrent_layers, or all except every full_attention_interval-th one and
// the draft layers.
std::vector<bool> recurrent_layers(const Builder &builder, int64_t interval);

// Gated delta net (Qwen3-Next, Qwen3.5): Q, K and V through a short convolution, unit keys and queries, the
// delta rule, a norm of each head, and a gate. grouped: value head h uses key head h / (value heads / key
// heads), else h mod key heads. Also reads files with ssm_ba and ssm_in, whose rows are interleaved by key head.
// gate: Silu or Sigmoid.
void emit_gated_delta(Builder &builder, int32_t layer, const SubLayer &sublayer, bool grouped,
                      kernels::Activation::Kind gate = kernels::Activation::Kind::Silu);

// Mamba-2: [z x B C dt] = ssm_in in; x, B and C through a short convolution; scan; gate, then norm of each group
// (without `normed`, only if there is ssm_norm).
void emit_mamba2_mixer(Builder &builder, int32_t layer, const SubLayer &sublayer, bool normed = true);

// Mamba-1: [x z] = ssm_in in; x through a short convolution; [dt B C] = ssm_x x, each normalized with
// ssm_{dt,b,c}_norm if these tensors exist, or without weights if ssm.dt_b_c_rms is set; scan; gate.
void emit_mamba_mixer(Builder &builder, int32_t layer, const SubLayer &sublayer);

// PLaMo 2's scan: as Mamba-2's with one group, but with B, C and dt computed from the convolved x and normalized,
// z and x interleaved by head in ssm_in, and no norm after the gate.
void emit_plamo2_mixer(Builder &builder, int32_t layer, const SubLayer &sublayer);

// Kimi delta attention (Kimi Linear, 2025): a gated delta rule whose decays differ by key channel. The decay is
// exp(rate * softplus(f)) or, with a bound, exp(bound / (1 + exp(-rate * f))).
void emit_kimi_delta(Builder &builder, int32_t layer, const SubLayer &sublayer, double bound = 0);

// Lightning attention (Qin et al. 2024): linear attention with a constant decay per head, slower in later
// layers, then a norm and a gate.
void emit_lightning(Builder &builder, int32_t layer, const SubLayer &sublayer);

// Gated short convolution (LFM2): [B C X] = in_proj in; out_proj(C * conv(B * X)).
void emit_short_conv(Builder &builder, int32_t layer, const SubLayer &sublayer);

// Attention whose output is multiplied by the sigmoid of a gate: attn_q has, for each head, rows of the query
// and then of the gate (Qwen3-Next, Qwen3.5). Heads are normalized and rotated. before: called with the attention step before it
// is added; may change it, and add steps.
void emit_gated_attention(Builder &builder, int32_t layer, const SubLayer &sublayer, int32_t rope,
                          int32_t kv_heads, const std::function<void(kernels::Attention &)> &before = {});

}  // namespace runnel::model
