// The name of a model file's quantization.
#pragma once

#include <string>

#include "gguf/file.h"

namespace runnel::commands {

// The mix that general.file_type names ("Q4_K_M"), or else the type of most of the weights. Empty without tensors.
std::string weight_type(const gguf::File &file);

}  // namespace runnel::commands
