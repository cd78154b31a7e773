// nemotron: Nemotron-4 and Minitron. Layer norms with biases (1 is added to their weights by the converter),
// squared ReLU without a gate, part of each head is rotated.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_nemotron(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .norm = kernels::Norm::Kind::Layer,
                     .norm_biases = true,
                     .act = kernels::Activation::Kind::ReluSquared,
                     .gated = false});
}

}  // namespace runnel::model
