// The metadata of a synthetic model, without its vocabulary.
#pragma once

#include "gguf/writer.h"
#include "tests/support/model_maker.h"

namespace runnel::testing {

// shape: complete, of a known family.
void add_metadata(const ModelShape &shape, gguf::Writer &writer);

}  // namespace runnel::testing
