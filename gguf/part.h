// The content of one GGUF file, checked: what File is put together from. Internal to gguf/.
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
    // The value of an integer key, `absent` when it is not there. Throws Malformed when it is anything else.
    int64_t integer(std::string_view key, int64_t absent) const;
};

// Parses and checks a whole file. What takes all parts of a set to know is left to File: duplicate names of
// tensors, Tensor::part. Throws Malformed.
Part read_part(std::span<const std::byte> bytes);

}  // namespace runnel::gguf
