// hunyuan-dense: Hunyuan 0.5B to 7B. Query and key heads are normed after RoPE; the base of the rotations in the
// file includes the alpha of their "dynamic" scaling. hunyuan_vl (HunyuanOCR, the text part): the same, but the
// file has alpha in a key of its own, rope.scaling.alpha. It has four position axes; in text, a token has the
// same position on all of them.
#include <cmath>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

namespace {

void emit(Builder &b, double base_factor) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .rope_base_factor = base_factor,
                     .head_norm = DecoderTraits::HeadNorm::PerHeadAfterRope});
}

}  // namespace

void emit_hunyuan_dense(Builder &b) {
    emit(b, 1);
}

void emit_hunyuan_vl(Builder &b) {
    const double alpha = b.metadata().real("rope.scaling.alpha", 0).value_or(0);
    const int32_t head = b.hyper().key_length;
    emit(b, alpha > 0 && head > 2 ? std::pow(alpha, double(head) / (head - 2)) : 1);
}

}  // namespace runnel::model
