// glm4: GLM-4-0414 and GLM-Z1. Norms before and behind both halves of a layer; half of each head is rotated;
// fused gate and up matrices.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_glm4(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Adjacent, .block = DecoderTraits::Block::Sandwich});
}

}  // namespace runnel::model
