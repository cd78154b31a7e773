// hunyuan-dense: Hunyuan 0.5B to 7B. Query and key heads are normed behind RoPE; the base of the rotations in
// the file includes the alpha of their "dynamic" scaling.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_hunyuan_dense(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .head_norm = DecoderTraits::HeadNorm::PerHeadAfterRope});
}

}  // namespace runnel::model
