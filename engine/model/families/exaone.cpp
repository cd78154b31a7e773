// exaone: EXAONE 3.0, 3.5 and Deep. As llama with rotated pairs half a head apart.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_exaone(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves});
}

}  // namespace runnel::model
