// A folder as Hugging Face's programs write it: config.json, model.safetensors and more.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temporary.h"

namespace runnel::testing {

// The bytes of a safetensors file: tensors in the order of add().
class SafetensorsBytes {
  public:
    void add(const std::string &name, const std::vector<int64_t> &shape, const std::vector<float> &values) {
        std::string bytes(values.size() * sizeof(float), '\0');
        std::memcpy(bytes.data(), values.data(), bytes.size());
        add(name, "F32", shape, bytes);
    }
    void add(const std::string &name, const std::string &dtype, const std::vector<int64_t> &shape,
             std::string_view bytes) {
        header[name] = {
            {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
        data += bytes;
    }
    std::string bytes() const { return with_header(header.dump()); }
    std::string with_header(const std::string &text) const {
        const uint64_t length = text.size();
        std::string all(sizeof length, '\0');
        std::memcpy(all.data(), &length, sizeof length);
        return all + text + data;
    }

    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::string data;
};

// Numbers that tell every element from every other.
inline std::vector<float> counted(int64_t count, float first) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i) / 64);
    return values;
}

// A byte-level tokenizer without merges, for a table of `size` rows (at least 256).
inline nlohmann::json bare_tokenizer() {
    nlohmann::json vocab = nlohmann::json::object();
    int next = 256, id = 0;
    for (int byte = 0; byte < 256; ++byte) {
        const bool is_printed = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        const int code = is_printed ? byte : next++;
        std::string piece;
        if (code < 128) {
            piece += static_cast<char>(code);
        } else {
            piece += static_cast<char>(0xC0 | code >> 6);
            piece += static_cast<char>(0x80 | (code & 63));
        }
        vocab[piece] = id++;
    }
    return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}},
            {"added_tokens", {{{"id", 256}, {"content", "<|im_end|>"}, {"special", true}}}},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}};
}

}  // namespace runnel::testing
