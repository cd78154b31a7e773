// seed_oss: Seed-OSS. Biases on Q, K and V; the norm that files call post_attention_norm comes before the
// feed-forward network.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_seed_oss(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .biases = DecoderTraits::Biases::Qkv,
                     .ffn_norm = "post_attention_norm"});
}

}  // namespace runnel::model
