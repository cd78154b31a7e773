// What a user should know of a file that can be run.
#pragma once

#include <string>
#include <vector>

#include "engine/model/model.h"

namespace runnel::model {

// build(), and a line for every key of the model's architecture that this version does not know.
Model build(const gguf::File &file, int64_t context, std::vector<std::string> &notes);

}  // namespace runnel::model
