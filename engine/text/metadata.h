// Typed access to tokenizer metadata: every getter throws TokenizerError naming the key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/token.h"
#include "gguf/file.h"

namespace runnel::text {

// nullopt for an absent key; throws for a value of another type.
std::optional<std::string_view> get_string(const gguf::File &file, const std::string &key);
std::optional<bool> get_bool(const gguf::File &file, const std::string &key);

// An id in a vocabulary of `size` tokens. -1 (and 4294967295, which is -1 written as u32) means "none".
std::optional<TokenId> get_token_id(const gguf::File &file, const std::string &key, size_t size);

// Arrays: the required ones must exist, the others are empty if absent.
std::vector<std::string_view> require_strings(const gguf::File &file, const std::string &key);
std::vector<float> get_floats(const gguf::File &file, const std::string &key);
std::vector<int64_t> get_ints(const gguf::File &file, const std::string &key);

// Throws TokenizerError "KEY: PROBLEM".
[[noreturn]] void fail(const std::string &key, const std::string &problem);

}  // namespace runnel::text
