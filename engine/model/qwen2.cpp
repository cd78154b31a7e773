// qwen2: Qwen 1.5, 2, 2.5, QwQ and the DeepSeek-R1 distillations of them. Q, K and V have biases; rotated
// pairs are half a head apart.
#include "engine/model/families.h"

namespace runnel::model {

void emit_qwen2(Builder &builder) {
    emit_decoder(builder, {.pairs = kernels::RopeTable::Pairs::Halves, .biases_required = true});
}

}  // namespace runnel::model
