// What a file is that is not GGUF, so that the error can say it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace runnel::gguf {

// For bytes that do not start with the GGUF magic: what they look like and, where there is one, the way to a
// GGUF file. One clause without the file's name, e.g. "is a safetensors file; convert it to GGUF with ...".
std::string identify(std::span<const std::byte> bytes);

}  // namespace runnel::gguf
