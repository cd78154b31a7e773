// cohere2: Command R7B, Command A, Aya Expanse. As command-r; three window layers with RoPE, then a full
// one without.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_cohere2(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Adjacent,
                     .block = DecoderTraits::Block::Parallel,
                     .norm = kernels::Norm::Kind::Layer,
                     .ffn_norm = "",
                     .full = full_layers(b, 4),
                     .window = b.metadata().required_integer("attention.sliding_window", 1, INT32_MAX),
                     .rope_on_full = false,
                     .logit_scale = b.metadata().required_real("logit_scale", 0)});
}

}  // namespace runnel::model
