// qwen2: Qwen 1.5, 2, 2.5, QwQ and the DeepSeek-R1 distillations of them. Q, K and V have biases; rotated
// pairs are half a head apart.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_qwen2(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves, .biases = DecoderTraits::Biases::Qkv});
}

}  // namespace runnel::model
