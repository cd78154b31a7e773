// A Hugging Face folder as a GGUF file: config.json, safetensors and the tokenizer's files.
#pragma once

#include <filesystem>

#include "engine/convert/plan.h"
#include "engine/convert/safetensors.h"

namespace runnel::convert {

// Plans the conversion of a folder whose weights are open; `weights` must outlive the plan. Throws gguf::FileError: for a family that is not known, for settings without a counterpart in the
// architecture, and for tensors that are missing, of the wrong shape, or that nothing would use.
Plan plan_conversion(const std::filesystem::path &folder, const Safetensors &weights, Matrices matrices);

}  // namespace runnel::convert
