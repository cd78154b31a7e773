// The checked content of one GGUF file, from which File is assembled. Internal to gguf/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/file.h"
#include "gguf/name_index.h"

namespace runnel::gguf {

struct Part {
    uint32_t version = 0;
    uint64_t alignment = 32;
    std::vector<File::KeyValue> metadata;
    NameIndex keys;
    std::vector<Tensor> tensors;

    const Value *find(std::string_view key) const;
    // The value of an integer key, or `absent` if it is missing. Throws Malformed if it is anything else.
    int64_t integer(std::string_view key, int64_t absent) const;
};

// Parses and checks a whole file. File checks what needs all parts of a set: duplicate tensor names and
// Tensor::part. Throws Malformed.
Part read_part(std::span<const std::byte> bytes);

}  // namespace runnel::gguf
