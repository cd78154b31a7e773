// glm4: GLM-4-0414 and GLM-Z1. Norms before and after both halves of a layer; half of each head is rotated;
// fused gate and up matrices. Files of GLM-4.1V and 4.6V-Flash have position axes (M-RoPE), and rows of queries
// and keys in the order for rotated halves.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_glm4(Builder &b) {
    using Pairs = kernels::RopeTable::Pairs;
    emit_decoder(b, {.pairs = b.has_position_axes() ? Pairs::Halves : Pairs::Adjacent,
                     .block = DecoderTraits::Block::Sandwich});
}

}  // namespace runnel::model
