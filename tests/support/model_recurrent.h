// The files of families with recurrent layers (model_families.h): which layers are of which kind, and the
// mixers' tensors and keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/writer.h"

namespace runnel::testing {

struct ModelShape;

struct RecurrentFiles {
    enum class Mixer { GatedDelta, ShortConv, Mamba2, Mamba, Plamo2, KimiDelta, Lightning, Rwkv6, Rwkv7 };
    Mixer mixer;
    int64_t period = 3;          // the last of this many layers has attention; 0: none has
    bool attention_too = false;  // in every layer, besides the mixer
    bool alternating = false;    // a layer is one of: mixer, feed-forward network, attention
    bool feed_forward = true;    // after the mixer
    bool gated_attention = false;
    bool interval_key = false;   // full_attention_interval; else attention.head_count_kv by layer
    bool separate_gates = true;  // ssm_alpha and ssm_beta; else ssm_ba
    bool interleaved = false;    // ssm_in instead of attn_qkv and attn_gate
    bool low_rank = true;        // ssm_f and ssm_g are products of two matrices; else one
    float rate = -0.6f;          // ssm_a
    bool normed_inputs = false;  // ssm_{dt,b,c}_norm
    bool mixed_experts = false;  // experts in every second layer only
    // Of RWKV: channel_mix_* in place of ffn_*; RWKV-7's gate, and its norm of heads; RWKV-6's interpolations in a
    // tensor each.
    bool channel_mix = false, gate = true, norm_of_heads = true, lerps_apart = false;
    std::string final_norm = "output_norm";

    bool mixes(int64_t layer) const { return alternating ? layer % 4 == 0 : attention_too || !last(layer); }
    bool attends(int64_t layer) const { return alternating ? layer % 4 == 2 : attention_too || last(layer); }
    // Whether a layer has ffn_* tensors.
    bool has_ffn(int64_t layer) const { return feeds(layer) && !channel_mix; }
    bool feeds(int64_t layer) const { return alternating ? layer % 2 == 1 : feed_forward; }

  private:
    bool last(int64_t layer) const { return period > 0 && (layer + 1) % period == 0; }
};

// A tensor of a mixer. Matrices have `gain` (see Planner::matrix), others a mean and deviation.
struct MixerTensor {
    std::string name;            // without the layer's prefix
    std::vector<int64_t> shape;  // fastest first
    bool matrix = false;
    float gain = 1, mean = 0, sigma = 0.1f;
};

// The sizes in the ssm.* keys, computed from the shape's heads and width.
struct MixerSizes {
    MixerSizes(const ModelShape &shape, RecurrentFiles::Mixer mixer);
    int64_t taps, inner, state, groups, rank;
};

// The tensors of a layer. residual: gain of the output that is added to the residual stream.
std::vector<MixerTensor> mixer_tensors(const ModelShape &shape, const RecurrentFiles &files, int64_t layer,
                                       float residual);

// RWKV: the width of a head, and the ranks of its products of two matrices. (llama.cpp's AVX-512 code needs
// multiples of 64.)
struct RwkvSizes {
    explicit RwkvSizes(const ModelShape &shape);
    int64_t head, decay = 16, rate = 24, value = 8, gate = 32, shift = 12;
    int64_t key_heads;  // of RWKV-6 with Qwen2's networks
};

// The keys that differ from those of other families: feed_forward_length, attention.head_count_kv and ssm.*.
// latent: attention has the keys of latent attention.
void add_recurrent_metadata(const ModelShape &shape, const RecurrentFiles &files, const std::string &arch,
                            bool latent, gguf::Writer &writer);

}  // namespace runnel::testing
