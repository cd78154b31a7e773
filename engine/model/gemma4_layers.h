// What differs from layer to layer in Gemma 4 and its assistants, by the file's keys: window layers and full ones, each kind
// with its own head size, number of K/V heads and RoPE, and the width of the feed-forward network.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/builder.h"
#include "engine/model/shared_keys.h"

namespace runnel::model {

class Gemma4Layers {
  public:
    // period: as in full_layers(). Adds the two RoPEs to the program. Throws ModelError.
    Gemma4Layers(Builder &builder, int64_t period);

    const std::vector<bool> &full() const { return full_; }
    const AttentionKind &kind(int32_t layer) const {
        return full_[static_cast<size_t>(layer)] ? whole_ : windowed_;
    }
    int32_t kv_heads(int32_t layer) const {
        return static_cast<int32_t>(kv_heads_[static_cast<size_t>(layer)]);
    }
    int64_t hidden(int32_t layer) const { return hidden_[static_cast<size_t>(layer)]; }

  private:
    void read_kinds(Builder &builder);

    std::vector<bool> full_;
    AttentionKind whole_, windowed_;
    std::vector<int64_t> kv_heads_, hidden_;
};

}  // namespace runnel::model
