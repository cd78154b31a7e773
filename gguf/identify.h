// Recognizes common files that are not GGUF, for the error message.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace runnel::gguf {

// For bytes without the GGUF magic: what they look like and, if there is one, how to get a GGUF file. One
// clause without the file's name, e.g. "is a safetensors file; convert it to GGUF with ...".
std::string identify(std::span<const std::byte> bytes);

}  // namespace runnel::gguf
