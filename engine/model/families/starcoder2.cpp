// starcoder2: layer norms, GELU without a gate, biases everywhere. The 4096-token window of the original is
// not in its files.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_starcoder2(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .norm = kernels::Norm::Kind::Layer,
                     .norm_biases = true,
                     .biases = DecoderTraits::Biases::All,
                     .act = kernels::Activation::Kind::GeluTanh,
                     .gated = false,
                     .window = sliding_window(b, 0)});
}

}  // namespace runnel::model
