// ernie4_5: the dense ERNIE 4.5. As llama; rotated pairs are adjacent in the original, too.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_ernie4_5(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Adjacent});
}

}  // namespace runnel::model
