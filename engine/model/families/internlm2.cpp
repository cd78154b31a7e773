// internlm2: InternLM 2 and 2.5. As llama.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_internlm2(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Adjacent});
}

}  // namespace runnel::model
