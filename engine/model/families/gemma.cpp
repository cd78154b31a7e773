// gemma: Gemma 1 and CodeGemma. GeGLU; embeddings times the root of their width. Norm weights are stored as
// the factors themselves (the original adds 1).
#include <cmath>

#include "engine/model/decoder.h"
#include "engine/model/families.h"

namespace runnel::model {

void emit_gemma(Builder &b) {
    emit_decoder(b, {.pairs = kernels::RopeTable::Pairs::Halves,
                     .act = kernels::Activation::Kind::GeluTanh,
                     .embedding_scale = std::sqrt(double(b.hyper().embedding_length))});
}

}  // namespace runnel::model
