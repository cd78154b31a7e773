#include "tests/support/model_recurrent.h"

#include <algorithm>
#include <cmath>

#include "tests/support/model_maker.h"

namespace runnel::testing {

using Mixer = RecurrentFiles::Mixer;

MixerSizes::MixerSizes(const ModelShape &shape, Mixer mixer) : taps(mixer == Mixer::ShortConv ? 3 : 4) {
    if (mixer == Mixer::GatedDelta) {
        const auto given = [](int64_t size, int64_t otherwise) { return size > 0 ? size : otherwise; };
        rank = given(shape.state_heads, shape.heads);
        state = given(shape.state_dim, shape.head_dim);
        groups = given(shape.state_key_heads, shape.kv_heads);
        inner = rank * state;
        return;
    }
    inner = 2 * shape.width;
    state = 16;
    groups = mixer == Mixer::Plamo2 ? 0 : 2;
    rank = mixer == Mixer::Mamba2 || mixer == Mixer::Plamo2 ? inner / shape.head_dim
                                                            : std::max<int64_t>(1, shape.width / 16);
}

RwkvSizes::RwkvSizes(const ModelShape &shape) : head(shape.width % 64 == 0 ? 64 : shape.head_dim) {
    const int64_t heads = shape.width / head;
    key_heads = heads % 2 == 0 ? heads / 2 : heads;
}

namespace {

// Of one layer.
class RwkvTensors {
  public:
    RwkvTensors(const ModelShape &shape, const RecurrentFiles &files, int64_t layer, float residual)
        : shape_(shape), files_(files), sizes_(shape), layer_(layer), residual_(residual) {}

    std::vector<MixerTensor> of_7() {
        interpolation("time_mix_lerp_fused", files_.gate ? 6 : 5);
        vector("time_mix_w0", -3, 0.5f);  // a memory of about thirty tokens
        low_rank("time_mix_w", sizes_.decay, 1);
        vector("time_mix_a0", 0);
        low_rank("time_mix_a", sizes_.rate, 1);
        vector("time_mix_v0", 0);
        low_rank("time_mix_v", layer_ == 0 ? sizes_.rate : sizes_.value,
                 1);  // the first layer's are not used
        if (files_.gate) low_rank("time_mix_g", sizes_.gate, 2);
        vector("time_mix_k_k", 1, 0.3f);
        vector("time_mix_k_a", 1, 0.3f);
        vector("time_mix_r_k", 0);
        for (const char *name : {"time_mix_receptance", "time_mix_key", "time_mix_value"})
            matrix(name, width(), width(), 1);
        if (files_.norm_of_heads) norm_of_heads();
        // Without the norm, outputs are as large as sums over the memory of a head.
        matrix("time_mix_output", width(), width(), files_.norm_of_heads ? 2 * residual_ : 0.1f * residual_);
        if (files_.channel_mix) channel_mix();
        return std::move(list_);
    }

    std::vector<MixerTensor> of_6() {
        const int64_t keys = files_.channel_mix ? width() : sizes_.key_heads * sizes_.head;
        interpolation("time_mix_lerp_x", 1);
        if (files_.lerps_apart)
            for (const char *name : {"w", "k", "v", "r", "g"})
                interpolation(std::string("time_mix_lerp_") + name, 1);
        else
            interpolation("time_mix_lerp_fused", 5);
        numbers("time_mix_w1.weight", {width(), 5 * sizes_.shift}, 0, sigma(width()));
        numbers("time_mix_w2.weight", {sizes_.shift, width(), 5}, 0, 0.3f * sigma(sizes_.shift));
        vector("time_mix_decay", -3.5f, 0.5f);  // a memory of about thirty tokens
        numbers("time_mix_decay_w1.weight", {width(), sizes_.decay}, 0, sigma(width()));
        numbers("time_mix_decay_w2.weight", {sizes_.decay, width()}, 0, 0.5f * sigma(sizes_.decay));
        matrix("time_mix_receptance", width(), width(), 1);
        matrix("time_mix_key", width(), keys, 1);
        matrix("time_mix_value", width(), keys, 1);
        matrix("time_mix_gate", width(), width(), 2);
        if (files_.channel_mix) {
            numbers("time_mix_first.weight", {sizes_.head, width() / sizes_.head}, 0.5f, 0.3f);
            norm_of_heads();
            channel_mix();
            interpolation("channel_mix_lerp_r", 1);
            matrix("channel_mix_receptance", width(), width(), 2);
        } else {
            numbers("time_mix_receptance.bias", {width()}, 0);
            numbers("time_mix_key.bias", {keys}, 0);
            numbers("time_mix_value.bias", {keys}, 0);
        }
        matrix("time_mix_output", width(), width(), (files_.channel_mix ? 2 : 8) * residual_);
        return std::move(list_);
    }

  private:
    int64_t width() const { return shape_.width; }
    // With it, products of a row with numbers of variance 1 have variance 1.
    static float sigma(int64_t cols) { return 1 / std::sqrt(static_cast<float>(cols)); }
    void matrix(const std::string &name, int64_t cols, int64_t rows, float gain) {
        list_.push_back({name + ".weight", {cols, rows}, true, gain});
    }
    void numbers(const std::string &name, std::vector<int64_t> shape, float mean, float deviation = 0.1f) {
        list_.push_back({name, std::move(shape), false, 1, mean, deviation});
    }
    void vector(const std::string &name, float mean, float deviation = 0.1f) {
        numbers(name + ".weight", {width()}, mean, deviation);
    }
    // Files have these matrices in F32.
    void low_rank(const std::string &name, int64_t rank, float gain) {
        numbers(name + "1.weight", {width(), rank}, 0, sigma(width()));
        numbers(name + "2.weight", {rank, width()}, 0, gain * sigma(rank));
    }
    void interpolation(const std::string &name, int64_t count) {
        numbers(name + ".weight", {width(), 1, 1, count}, 0.5f, 0.3f);
    }
    void norm_of_heads() {
        vector("time_mix_ln", 1);
        numbers("time_mix_ln.bias", {width()}, 0);
    }
    void channel_mix() {
        interpolation("channel_mix_lerp_k", 1);
        matrix("channel_mix_key", width(), shape_.ff, 1);
        matrix("channel_mix_value", shape_.ff, width(), 2 * residual_);
    }

    const ModelShape &shape_;
    const RecurrentFiles &files_;
    RwkvSizes sizes_;
    int64_t layer_;
    float residual_;
    std::vector<MixerTensor> list_;
};

}  // namespace

std::vector<MixerTensor> mixer_tensors(const ModelShape &shape, const RecurrentFiles &files, int64_t layer,
                                       float residual) {
    if (files.mixer == Mixer::Rwkv7) return RwkvTensors(shape, files, layer, residual).of_7();
    if (files.mixer == Mixer::Rwkv6) return RwkvTensors(shape, files, layer, residual).of_6();
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
        case Mixer::Rwkv6:
        case Mixer::Rwkv7:
            break;  // above
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
    if (files.mixer == Mixer::Rwkv6) {
        const RwkvSizes r(shape);
        add("wkv.head_size", r.head);
        add("time_mix_extra_dim", r.shift);
        add("time_decay_extra_dim", r.decay);
        if (files.channel_mix) return add("rescale_every_n_layers", 2);
        add("token_shift_count", 1);
        return add("attention.head_count_kv", r.key_heads);
    }
    if (files.mixer == Mixer::Rwkv7) {
        const RwkvSizes r(shape);
        add("wkv.head_size", r.head);
        add("attention.decay_lora_rank", r.decay);
        add("attention.iclr_lora_rank", r.rate);
        add("attention.value_residual_mix_lora_rank", r.value);
        add("attention.gate_lora_rank", files.gate ? r.gate : 0);
        if (!files.channel_mix) add("token_shift_count", 1);
        return;
    }
    add("ssm.conv_kernel", s.taps);
    if (files.mixer == Mixer::KimiDelta) return add("kda.head_dim", shape.head_dim);
    add("ssm.inner_size", s.inner);
    add("ssm.state_size", s.state);
    add("ssm.time_step_rank", s.rank);
    if (files.mixer != Mixer::Mamba) add("ssm.group_count", s.groups);
}

}  // namespace runnel::testing
