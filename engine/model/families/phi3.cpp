// phi3: Phi-3, 3.5 and 4 (mini, medium, 14B). Fused Q, K, V and gate, up matrices; LongRoPE factors in the
// models of long context; a window on all layers if the file gives one (Phi-3 mini and medium of 4k).
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_phi3(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves, .window = sliding_window(b, 0)});
}

}  // namespace runnel::model
