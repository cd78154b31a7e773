// hunyuan-dense: Hunyuan 0.5B to 7B. As qwen3, but heads are normed behind RoPE. hunyuan_vl (HunyuanOCR, the text
// part): the same; its files leave the scaling of RoPE's base (NTK, rope.scaling.alpha) to their reader, and
// divide the rotated pairs between four axes of positions, all of which count tokens in text.
#include <cmath>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_hunyuan_dense(Builder &b) {
    const double alpha = b.metadata().real("rope.scaling.alpha", 0).value_or(0);
    const int32_t head = b.hyper().key_length;
    const bool scaled = alpha > 0 && head > 2;
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .head_norm = DecoderTraits::HeadNorm::PerHeadAfterRope,
                     .rope_base_factor = scaled ? std::pow(alpha, double(head) / (head - 2)) : 1});
}

}  // namespace runnel::model
