#include "engine/text/metadata.h"

namespace runnel::text {
namespace {

const gguf::Value *find_array(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = file.find(key);
    if (value && value->type() != gguf::ValueType::Array) fail(key, "is not an array");
    return value;
}

}  // namespace

void fail(const std::string &key, const std::string &problem) {
    throw TokenizerError(key + ": " + problem);
}

std::optional<std::string_view> get_string(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = file.find(key);
    if (!value) return std::nullopt;
    const auto string = value->as_string();
    if (!string) fail(key, "is not a string");
    return string;
}

std::optional<bool> get_bool(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = file.find(key);
    if (!value) return std::nullopt;
    const auto flag = value->as_bool();
    if (!flag) fail(key, "is not a boolean");
    return flag;
}

std::optional<TokenId> get_token_id(const gguf::File &file, const std::string &key, size_t size) {
    const gguf::Value *value = file.find(key);
    if (!value) return std::nullopt;
    const auto id = value->as_int();
    if (!id) fail(key, "is not an integer");
    if (*id == -1 || *id == UINT32_MAX) return std::nullopt;
    if (*id < 0 || static_cast<uint64_t>(*id) >= size)
        fail(key, "id " + std::to_string(*id) + " is outside the vocabulary of " + std::to_string(size) +
                      " tokens");
    return static_cast<TokenId>(*id);
}

std::vector<std::string_view> require_strings(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = find_array(file, key);
    if (!value) fail(key, "is missing: the file has no usable tokenizer");
    auto strings = value->as_strings();
    if (strings.size() != value->size()) fail(key, "is not an array of strings");
    return strings;
}

std::vector<float> get_floats(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = find_array(file, key);
    if (!value) return {};
    auto floats = value->as_floats();
    if (floats.size() != value->size()) fail(key, "is not an array of numbers");
    return floats;
}

std::vector<int64_t> get_ints(const gguf::File &file, const std::string &key) {
    const gguf::Value *value = find_array(file, key);
    if (!value) return {};
    auto ints = value->as_ints();
    if (ints.size() != value->size()) fail(key, "is not an array of integers");
    return ints;
}

}  // namespace runnel::text
