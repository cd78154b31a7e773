// gptneox: Pythia, GPT-NeoX, Dolly, RedPajama. Both halves of a layer in parallel, each after its own layer
// norm (use_parallel_residual), or one after the other; exact GELU without a gate; biases everywhere.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_gptneox(Builder &b) {
    const bool parallel = b.metadata().boolean("use_parallel_residual").value_or(true);
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .block = parallel ? DecoderTraits::Block::Parallel : DecoderTraits::Block::PreNorm,
                     .norm = kernels::Norm::Kind::Layer,
                     .norm_biases = true,
                     .biases = DecoderTraits::Biases::All,
                     .act = kernels::Activation::Kind::GeluErf,
                     .gated = false});
}

}  // namespace runnel::model
