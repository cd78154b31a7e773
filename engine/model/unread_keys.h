// Checks the metadata keys that the model's family has not read.
#pragma once

#include <string>
#include <vector>

#include "engine/model/metadata.h"

namespace runnel::model {

// Checks the keys of the model's architecture that were not read through `metadata` or a copy of it. Throws
// ModelError for a key that changes what the model computes, unless its value is neutral. Ignores keys without
// an effect on text (sizes that tensors show, image and audio parts, pooling). Returns one note for each other
// key.
std::vector<std::string> check_unread_keys(const Metadata &metadata);

}  // namespace runnel::model
