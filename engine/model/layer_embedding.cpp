#include "engine/model/layer_embedding.h"

#include <cmath>
#include <string>

#include "engine/model/decoder.h"

namespace runnel::model {

using namespace kernels;

constexpr int64_t kMaxEmbedding = 65536;

LayerEmbedding::LayerEmbedding(Builder &builder, int64_t absent)
    : b_(builder), h_(builder.hyper()), width_{h_.embedding_length, "embedding_length"} {
    const char *key = "embedding_length_per_layer_input";
    size_ = {b_.metadata().integer(key, 0, kMaxEmbedding).value_or(absent), key};
}

Linear::Part LayerEmbedding::part(const std::string &tensor, Size rows, Size cols, Slot out) {
    return {b_.matrix(tensor, rows, cols), kNoWeight, out, kNoSlot};
}

Slot LayerEmbedding::inputs() {
    return b_.slot("inputs of layers", size_.value * h_.block_count);
}

void LayerEmbedding::emit_inputs(Slot x) {
    const Size all{size_.value * h_.block_count, "embedding_length_per_layer_input * block_count"};
    const Slot projected = b_.slot("projected embedding", all.value);
    b_.add(Embed{b_.matrix("per_layer_token_embd.weight", {h_.vocab, "the vocabulary"}, all), inputs(),
                 static_cast<float>(std::sqrt(double(size_.value)))});
    Linear::Part projection = part("per_layer_model_proj.weight", all, width_, projected);
    projection.scale = static_cast<float>(1 / std::sqrt(double(width_.value)));
    b_.add(Linear{x, {projection}});
    b_.add(Norm{.in = projected,
                .out = inputs(),
                .weight = b_.vector("per_layer_proj_norm.weight", size_),
                .eps = h_.norm_epsilon,
                .add = inputs(),
                .parts = h_.block_count,
                .scale = static_cast<float>(std::sqrt(0.5))});
}

void LayerEmbedding::emit_branch(int32_t layer, Slot in, Slot out) {
    const int64_t size = size_.value;
    const Slot gate = b_.slot("layer's gate", size), input = b_.slot("layer's input", size);
    b_.add(Linear{in, {part(layer_prefix(layer) + "inp_gate.weight", size_, width_, gate)}});
    b_.add(Copy{.in = inputs(), .out = input, .from = {.first = layer * size}, .to = {}, .width = size});
    b_.add(Activation{gate, input, gate, Activation::Kind::GeluTanh});
    b_.add(Linear{gate, {part(layer_prefix(layer) + "proj.weight", width_, size_, out)}});
}

}  // namespace runnel::model
