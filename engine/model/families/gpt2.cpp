// gpt2: learned positions instead of rotations, layer norms, GELU without a gate, biases everywhere.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_gpt2(Builder &b) {
    emit_decoder(b, {.norm = kernels::Norm::Kind::Layer,
                     .norm_biases = true,
                     .biases = DecoderTraits::Biases::All,
                     .act = kernels::Activation::Kind::GeluTanh,
                     .gated = false,
                     .learned_positions = true});
}

}  // namespace runnel::model
