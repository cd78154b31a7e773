// glm4: GLM-4-0414 and GLM-Z1. Norms before and behind both halves of a layer; half of each head is rotated;
// fused gate and up matrices. Files of GLM-4.1V and 4.6V-Flash, which have axes of positions, hold the rows of
// queries and keys in the order of halves.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_glm4(Builder &b) {
    using Pairs = kernels::RopeTable::Pairs;
    emit_decoder(b, {.pairs = b.has_position_axes() ? Pairs::Halves : Pairs::Adjacent,
                     .block = DecoderTraits::Block::Sandwich});
}

}  // namespace runnel::model
