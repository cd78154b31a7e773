// Assembles GGUF files byte by byte for tests, including invalid ones that gguf::Writer would not write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/file.h"

namespace runnel::testing {

class GgufBytes {
  public:
    // Appends a little-endian number, or a string with its 64-bit length.
    template <class T>
    GgufBytes &put(T number) {
        return put_raw({reinterpret_cast<const char *>(&number), sizeof number});
    }
    GgufBytes &put_string(std::string_view s) {
        put<uint64_t>(s.size());
        return put_raw(s);
    }
    GgufBytes &put_raw(std::string_view s) {
        for (const char c : s) bytes_.push_back(static_cast<std::byte>(c));
        return *this;
    }
    GgufBytes &header(uint64_t tensors, uint64_t key_values, uint32_t version = 3) {
        return put_raw("GGUF").put(version).put(tensors).put(key_values);
    }
    // A key and its type; the value must follow.
    GgufBytes &key(std::string_view name, gguf::ValueType type) {
        return put_string(name).put(static_cast<uint32_t>(type));
    }
    template <class T>
    GgufBytes &key(std::string_view name, gguf::ValueType type, T number) {
        return key(name, type).put(number);
    }
    GgufBytes &array(gguf::ValueType element, uint64_t count) {
        return put(static_cast<uint32_t>(element)).put(count);
    }
    GgufBytes &tensor(std::string_view name, const std::vector<uint64_t> &shape, uint32_t type,
                      uint64_t offset) {
        put_string(name).put(static_cast<uint32_t>(shape.size()));
        for (const uint64_t n : shape) put(n);
        return put(type).put(offset);
    }
    // Zeros up to a multiple of `alignment`, then `data` zeros.
    GgufBytes &data(size_t count, size_t alignment = 32) {
        bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + count);
        return *this;
    }

    std::span<const std::byte> span() const { return bytes_; }
    std::vector<std::byte> &bytes() { return bytes_; }
    gguf::File open() const { return gguf::File::from_bytes(bytes_, "test.gguf"); }

  private:
    std::vector<std::byte> bytes_;
};

}  // namespace runnel::testing
