// The embeddings of a token for every layer (Gemma 3n, Gemma 4): each layer has an input of its own,
// `embedding_length_per_layer_input` = P wide,
//   (RMS(projection of the ordinary embedding / sqrt(width)) + sqrt(P) * embedding of the token) / sqrt(2),
// which the residual stream gates at the end of the layer.
#pragma once

#include <cstdint>

#include "engine/model/builder.h"

namespace runnel::model {

class LayerEmbedding {
  public:
    // absent: P if the file does not have the key. 0: layers have no such input.
    explicit LayerEmbedding(Builder &builder, int64_t absent = 0);

    bool present() const { return size_.value > 0; }
    // Computes the inputs of all layers; x: the embeddings, as the first layer reads them.
    void emit_inputs(kernels::Slot x);
    // out = Wproj (gelu(Wgate in) * the layer's input)
    void emit_branch(int32_t layer, kernels::Slot in, kernels::Slot out);

  private:
    kernels::Linear::Part part(const std::string &tensor, Size rows, Size cols, kernels::Slot out);
    kernels::Slot inputs();

    Builder &b_;
    const HyperParameters &h_;
    Size width_, size_;
};

}  // namespace runnel::model
