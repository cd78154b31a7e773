// What a file's metadata says and nothing has read.
#pragma once

#include <string>
#include <vector>

#include "engine/model/metadata.h"

namespace runnel::model {

// Looks at the keys of the model's architecture that nothing has read through `metadata` or a copy of it. One that
// changes what the model computes throws ModelError, unless its value leaves the computation as it is; keys that
// say nothing about text (sizes that tensors show, image and sound parts, pooling) are passed over. Returns a
// note for each of the others.
std::vector<std::string> check_unread_keys(const Metadata &metadata);

}  // namespace runnel::model
