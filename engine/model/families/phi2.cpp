// phi2: Phi 1, 1.5 and 2. Both halves of a layer in parallel after one layer norm; part of each head is
// rotated; GELU without a gate; biases everywhere, at the output matrix as well.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_phi2(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .block = DecoderTraits::Block::Parallel,
                     .norm = kernels::Norm::Kind::Layer,
                     .norm_biases = true,
                     .biases = DecoderTraits::Biases::All,
                     .act = kernels::Activation::Kind::GeluTanh,
                     .gated = false,
                     .ffn_norm = ""});
}

}  // namespace runnel::model
