// smollm3: as llama; every fourth layer has no RoPE.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_smollm3(Builder &b) {
    emit_decoder(
        b, {.pairs = kernels::RopeTable::Pairs::Adjacent, .full = full_layers(b, 4), .rope_on_full = false});
}

}  // namespace runnel::model
