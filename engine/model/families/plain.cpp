// Dense families with few differences from llama.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

using Act = kernels::Activation::Kind;
using Pairs = kernels::RopeTable::Pairs;
using Norms = kernels::Norm::Kind;

// xverse, chatglm (GLM-3 and GLM-4-9B: fused matrices, half of each head is rotated).
void emit_adjacent(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Adjacent});
}

// arcee: AFM-4.5B. Squared ReLU without a gate.
void emit_arcee(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Adjacent, .act = Act::ReluSquared, .gated = false});
}

// orion: layer norms with biases.
void emit_orion(Builder &b) {
    emit_decoder(b, {.pairs = Pairs::Halves, .norm = Norms::Layer, .norm_biases = true});
}

}  // namespace runnel::model
