// Notes for the user about a model file.
#pragma once

#include <string>
#include <vector>

#include "engine/model/model.h"

namespace runnel::model {

// Like build() in model.h; sets `notes` to one line per unknown key of the model's architecture.
Model build(const gguf::File &file, int64_t context, std::vector<std::string> &notes);

}  // namespace runnel::model
