// The base of recurrent.cpp's and linear_attention.cpp's token mixers.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/decoder.h"

namespace runnel::model {

inline constexpr int64_t kMaxTaps = 16, kMaxKeyDims = 1024, kMaxStateHeads = 65536, kMaxStateWidth = 1 << 20;

// What the token mixers have in common: names and sizes, and their usual steps.
class Mixer {
  public:
    Mixer(Builder &builder, int32_t layer)
        : b_(builder),
          prefix_(layer_prefix(layer)),
          width_{b_.hyper().embedding_length, "embedding_length"} {}

  protected:
    Size size(const char *key, int64_t low, int64_t high) const {
        return {b_.metadata().required_integer(key, low, high), key};
    }
    std::string name(const std::string &tensor) const { return prefix_ + tensor; }

    // A convolution of columns [first, first + count) out of `channels`.
    void conv(const std::string &tensor, Size taps, Size channels, int64_t first, int64_t count, bool silu,
              kernels::Slot in, kernels::Slot out) {
        const std::string full = name(tensor);
        const std::vector<float> all = b_.values(full + ".weight", channels, taps);
        std::vector<float> rows(static_cast<size_t>(taps.value * count));
        for (int64_t j = 0; j < taps.value; ++j)
            for (int64_t c = 0; c < count; ++c)
                rows[static_cast<size_t>(j * count + c)] =
                    all[static_cast<size_t>((first + c) * taps.value + j)];
        kernels::WeightId bias = kernels::kNoWeight;
        if (b_.has(full + ".bias")) {
            const std::vector<float> biases = b_.values(full + ".bias", {1, "a vector"}, channels);
            bias = b_.constant(full + ".bias", {biases.begin() + first, biases.begin() + first + count}, 1, 1,
                               count);
        }
        b_.add(
            kernels::ShortConv{.in = in,
                               .out = out,
                               .weight = b_.constant(full + ".weight", std::move(rows), 1, taps.value, count),
                               .bias = bias,
                               .silu = silu,
                               .state = b_.state_layer((taps.value - 1) * count)});
    }
    Size taps() const { return size("ssm.conv_kernel", 2, kMaxTaps); }

    // x / |x| * scale for each of `heads` slices.
    void unit(kernels::Slot slot, int32_t heads, int64_t dims, double scale) {
        const auto n = static_cast<double>(dims);
        b_.add(kernels::Norm{.in = slot,
                             .out = slot,
                             .weight = kernels::kNoWeight,
                             .eps = static_cast<float>(b_.hyper().norm_epsilon / n),
                             .parts = heads,
                             .scale = static_cast<float>(scale / std::sqrt(n))});
    }
    void project(const std::string &tensor, Size rows, kernels::Slot in, const SubLayer &sublayer) {
        b_.add(kernels::Linear{in,
                               {{b_.matrix(name(tensor + ".weight"), width_, rows),
                                 b_.optional_vector(name(tensor + ".bias"), width_), sublayer.out,
                                 sublayer.add, sublayer.scale}}});
    }
    kernels::Linear::Part part(const std::string &tensor, Size rows, kernels::Slot out) {
        return {b_.matrix(name(tensor + ".weight"), rows, width_), kernels::kNoWeight, out, kernels::kNoSlot};
    }

    Builder &b_;
    std::string prefix_;
    Size width_;
};

}  // namespace runnel::model
