// The metadata of a made-up model, but for its vocabulary.
#pragma once

#include "gguf/writer.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

// shape: complete, with a family that is known.
void add_metadata(const ModelShape &shape, gguf::Writer &writer);

}  // namespace runnel::testing
