// Teacher forcing: makes a model generate a given text, to measure decoding of a text that the model would
// not write, or without a trained model.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/text/token.h"
#include "kernels/backend.h"

namespace runnel::measure {

// The forced text of the one measured sequence, prompt included. Past its end, or if it is empty, the logits
// are the model's own.
struct TeacherForcing {
    std::vector<text::TokenId> tokens;
};

// A backend that forces a given text: it computes as `device` does, then raises the logit of the text's next
// token (token p + 1 in the row of position p) far above the others, in full rows and in candidates.
// `text` may be changed between batches.
std::unique_ptr<kernels::Backend> forced(std::unique_ptr<kernels::Backend> device,
                                         std::shared_ptr<const TeacherForcing> text);

}  // namespace runnel::measure
