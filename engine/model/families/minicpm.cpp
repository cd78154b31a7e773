// minicpm: MiniCPM 1, 2 and 4. As llama with scales on embeddings, residuals and logits. Old files lack them;
// they are then 12, 1.4 / sqrt(layers) and 256 / width.
#include <cmath>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_minicpm(Builder &b) {
    const HyperParameters &h = b.hyper();
    const Metadata &m = b.metadata();
    const auto scale = [&](const char *key, double absent) {
        const double value = m.real(key, 0).value_or(absent);
        return value == 0 ? 1 : value;
    };
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Adjacent,
                     .embedding_scale = scale("embedding_scale", 12),
                     .residual_scale = scale("residual_scale", 1.4 / std::sqrt(double(h.block_count))),
                     .logit_scale = 1 / scale("logit_scale", double(h.embedding_length) / 256)});
}

}  // namespace runnel::model
