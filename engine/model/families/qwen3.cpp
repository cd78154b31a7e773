// qwen3: as qwen2 without biases, with an RMS norm of every query and key head before RoPE. The head size
// (key_length) is not embedding_length / head_count in most sizes.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_qwen3(Builder &b) {
    emit_decoder(b,
                 {.pairs = kernels::RopeTable::Pairs::Halves, .head_norm = DecoderTraits::HeadNorm::PerHead});
}

}  // namespace runnel::model
