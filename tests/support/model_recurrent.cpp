#include "tests/support/model_recurrent.h"

#include <algorithm>

#include "tests/support/model_maker.h"

namespace runnel::testing {

using Mixer = RecurrentFiles::Mixer;

MixerSizes::MixerSizes(const ModelShape &shape, Mixer mixer)
    : taps(mixer == Mixer::ShortConv ? 3 : 4),
      inner(mixer == Mixer::GatedDelta ? shape.heads * shape.head_dim : 2 * shape.width),
      state(mixer == Mixer::GatedDelta ? shape.head_dim : 16),
      groups(mixer == Mixer::GatedDelta ? shape.kv_heads
             : mixer == Mixer::Plamo2   ? 0
                                        : 2),
      rank(mixer == Mixer::GatedDelta                         ? shape.heads
           : mixer == Mixer::Mamba2 || mixer == Mixer::Plamo2 ? inner / shape.head_dim
                                                              : std::max<int64_t>(1, shape.width / 16)) {}

std::vector<MixerTensor> mixer_tensors(const ModelShape &shape, const RecurrentFiles &files, float residual) {
    const MixerSizes s(shape, files.mixer);
    const int64_t width = shape.width;
    std::vector<MixerTensor> list;
    const auto matrix = [&](const std::string &name, int64_t cols, int64_t rows, float gain) {
        list.push_back({name + ".weight", {cols, rows}, true, gain});
    };
    const auto numbers = [&](const std::string &name, std::vector<int64_t> dimensions, float mean,
                             float sigma = 0.1f) {
        list.push_back({name, std::move(dimensions), false, 1, mean, sigma});
    };
    // Decays with a memory of about thirty tokens.
    constexpr float kStep = -3;
    const float rate = files.rate;
    switch (files.mixer) {
        case Mixer::GatedDelta: {
            const int64_t keys = s.groups * s.state, heads = s.rank;
            if (files.interleaved) {
                matrix("ssm_in", width, 2 * keys + 2 * s.inner, 1);
            } else {
                matrix("attn_qkv", width, 2 * keys + s.inner, 1);
                matrix("attn_gate", width, s.inner, 1);
            }
            if (files.separate_gates) {
                matrix("ssm_alpha", width, heads, 1);
                matrix("ssm_beta", width, heads, 1);
            } else {
                matrix("ssm_ba", width, 2 * heads, 1);
            }
            numbers("ssm_conv1d.weight", {s.taps, 2 * keys + s.inner}, 0, 0.5f);
            numbers("ssm_dt.bias", {heads}, kStep);
            numbers("ssm_a", {heads}, rate);
            numbers("ssm_norm.weight", {s.inner / heads}, 1);
            matrix("ssm_out", s.inner, width, 2 * residual);
            break;
        }
        case Mixer::ShortConv:
            matrix("shortconv.in_proj", width, 3 * width, 1);
            numbers("shortconv.conv.weight", {s.taps, width}, 0, 0.5f);
            matrix("shortconv.out_proj", width, width, 2 * residual);
            break;
        case Mixer::Mamba2: {
            const int64_t channels = s.inner + 2 * s.groups * s.state;
            matrix("ssm_in", width, s.inner + channels + s.rank, 1);
            numbers("ssm_conv1d.weight", {s.taps, channels}, 0, 0.5f);
            numbers("ssm_conv1d.bias", {channels}, 0);
            numbers("ssm_dt.bias", {s.rank}, kStep);
            numbers("ssm_a", {1, s.rank}, rate);
            numbers("ssm_d", {1, s.rank}, 1);
            numbers("ssm_norm.weight", {s.inner / s.groups, s.groups}, 1);
            matrix("ssm_out", s.inner, width, 2 * residual);
            break;
        }
        case Mixer::Mamba:
            matrix("ssm_in", width, 2 * s.inner, 1);
            numbers("ssm_conv1d.weight", {s.taps, s.inner}, 0, 0.5f);
            numbers("ssm_conv1d.bias", {s.inner}, 0);
            matrix("ssm_x", s.inner, s.rank + 2 * s.state, 1);
            if (files.normed_inputs) {
                numbers("ssm_dt_norm.weight", {s.rank}, 1);
                numbers("ssm_b_norm.weight", {s.state}, 1);
                numbers("ssm_c_norm.weight", {s.state}, 1);
            }
            matrix("ssm_dt", s.rank, s.inner, 1);
            numbers("ssm_dt.bias", {s.inner}, kStep);
            numbers("ssm_a", {s.state, s.inner}, rate, 0.2f);
            numbers("ssm_d", {s.inner}, 1);
            matrix("ssm_out", s.inner, width, 2 * residual);
            break;
        case Mixer::Plamo2: {
            const int64_t low = std::max<int64_t>(64, width / 16);
            matrix("ssm_in", width, 2 * s.inner, 1);
            numbers("ssm_conv1d.weight", {s.taps, s.inner}, 0, 0.5f);
            matrix("ssm_x", s.inner, low + 2 * s.state, 1);
            numbers("ssm_dt_norm", {low}, 1);  // its converter omits the suffix
            numbers("ssm_b_norm", {s.state}, 1);
            numbers("ssm_c_norm", {s.state}, 1);
            matrix("ssm_dt", low, s.rank, 1);
            numbers("ssm_dt.bias", {s.rank}, kStep);
            numbers("ssm_a", {s.rank}, rate);
            numbers("ssm_d", {s.rank}, 1);
            matrix("ssm_out", s.inner, width, 2 * residual);
            break;
        }
        case Mixer::KimiDelta: {
            const int64_t all = shape.heads * shape.head_dim, low = shape.head_dim;
            for (const char *part : {"q", "k", "v"}) {
                matrix(std::string("attn_") + part, width, all, 1);
                numbers(std::string("ssm_conv1d_") + part + ".weight", {s.taps, 1, all, 1}, 0, 0.5f);
            }
            for (const char *part : {"ssm_f", "ssm_g"}) {
                matrix(part + std::string("_a"), width, files.low_rank ? low : all, 1);
                if (files.low_rank) matrix(part + std::string("_b"), low, all, 1);
            }
            matrix("ssm_beta", width, shape.heads, 1);
            numbers("ssm_dt.bias", {all}, kStep);
            numbers("ssm_a", {1, shape.heads}, rate);
            numbers("ssm_norm.weight", {shape.head_dim}, 1);
            matrix("attn_output", all, width, 2 * residual);
            break;
        }
        case Mixer::Lightning: {
            const int64_t all = shape.heads * shape.head_dim;
            matrix("attn_qkv", width, 3 * all, 1);
            matrix("attn_gate", width, all, 1);
            numbers("attn_norm_2.weight", {all}, 1);
            matrix("attn_output", all, width, 2 * residual);
            break;
        }
    }
    return list;
}

void add_recurrent_metadata(const ModelShape &shape, const RecurrentFiles &files, const std::string &arch,
                            bool latent, gguf::Writer &writer) {
    const auto add = [&](const std::string &name, int64_t n) {
        writer.add(arch + "." + name, static_cast<uint32_t>(n));
    };
    const MixerSizes s(shape, files.mixer);
    const bool none = files.period == 0 && !files.attention_too && !files.alternating;
    add("attention.head_count", none ? 0 : shape.heads);
    gguf::Array kv_heads(gguf::ValueType::I32), hidden(gguf::ValueType::I32);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
        kv_heads.push(static_cast<int32_t>(!files.attends(layer) ? 0 : latent ? 1 : shape.kv_heads));
        hidden.push(static_cast<int32_t>(files.feeds(layer) ? shape.ff : 0));
    }
    if (files.alternating)
        writer.add(arch + ".feed_forward_length", hidden);
    else
        add("feed_forward_length", files.feed_forward ? shape.ff : 0);
    if (files.interval_key || files.attention_too) add("attention.head_count_kv", shape.kv_heads);
    if (files.interval_key) add("full_attention_interval", files.period);
    if (!files.interval_key && !files.attention_too && !none)
        writer.add(arch + ".attention.head_count_kv", kv_heads);
    if (!none && !latent) {
        add("attention.key_length", shape.head_dim);
        add("attention.value_length", shape.head_dim);
    }
    if (files.mixer == Mixer::ShortConv) return add("shortconv.l_cache", s.taps);
    if (files.mixer == Mixer::Lightning) return;
    add("ssm.conv_kernel", s.taps);
    if (files.mixer == Mixer::KimiDelta) return add("kda.head_dim", shape.head_dim);
    add("ssm.inner_size", s.inner);
    add("ssm.state_size", s.state);
    add("ssm.time_step_rank", s.rank);
    if (files.mixer != Mixer::Mamba) add("ssm.group_count", s.groups);
}

}  // namespace runnel::testing
