// Basic definitions of tokens.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace runnel::text {

// Index into the vocabulary.
using TokenId = int32_t;

inline constexpr TokenId kNoToken = -1;

// The type of a token, with the numbers used in files.
enum class TokenType : uint8_t {
    Normal = 1,
    Unknown = 2,      // replaces text that the vocabulary cannot spell
    Control = 3,      // steers the model; never made from ordinary text
    UserDefined = 4,  // recognized as a whole wherever its text occurs
    Unused = 5,       // padding; never made from text
    Byte = 6,         // "<0x41>": one byte of text that has no other spelling
};

// The file's tokenizer metadata is missing, contradictory or not supported. One line.
class TokenizerError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace runnel::text
