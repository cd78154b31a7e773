// mistral3: Ministral 3 and Mistral Small 3.x of recent converters. As llama, with YaRN, and queries that
// grow with the logarithm of their position in units of the context before YaRN.
#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_mistral3(Builder &b) {
    const Metadata &m = b.metadata();
    if (m.integer("expert_count", 0, 65536).value_or(0) > 0)
        m.fail("expert_count", "mixture-of-experts models are not supported yet");
    const double beta = m.real("attention.temperature_scale").value_or(0);
    const int64_t length =
        m.integer("rope.scaling.original_context_length", 1, INT32_MAX).value_or(b.hyper().context_length);
    emit_decoder(b,
                 {.pairs = kernels::RopeTable::Pairs::Adjacent,
                  .temperature = {.beta = static_cast<float>(beta), .length = static_cast<int32_t>(length)}});
}

}  // namespace runnel::model
