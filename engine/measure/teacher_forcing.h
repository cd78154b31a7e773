// A model that says what it is told: for measurements of decoding where no trained model is at hand, or none
// that would write the text in question.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/text/token.h"
#include "kernels/backend.h"

namespace runnel::decode {

// The text of the one sequence that is measured, its prompt included. Where it ends, or while it is empty,
// the model speaks for itself.
struct TeacherForcing {
    std::vector<text::TokenId> tokens;
};

// Everything is computed as `device` does; then, in the logits behind the token at position p, the text's
// token p + 1 is put far above the others, also where it selects candidates. `text` may be changed between
// batches.
std::unique_ptr<kernels::Backend> forced(std::unique_ptr<kernels::Backend> device,
                                         std::shared_ptr<const TeacherForcing> text);

}  // namespace runnel::decode
