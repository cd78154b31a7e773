// Finds the value of tokenizer.ggml.pre for the splitting that a tokenizer.json describes.
//
// Recognized by structure: the regular expressions of its `pre_tokenizer` in their order must be those of a known
// kind (engine/text/pre_tokenizer.h), together with its normalizer (NFC or none) and ignore_merges. Then the file's
// own expressions and the kind's split the same hard texts; a difference is an error, not a guess.
#pragma once

#include <string>

#include "engine/text/json.h"

namespace runnel::convert {

// Throws gguf::FileError "tokenizer.json: WHAT".
[[noreturn]] void refuse_tokenizer(const std::string &what);

// `tokenizer`: the whole tokenizer.json, of a byte-level BPE. Throws gguf::FileError that names what is not known.
std::string pre_tokenizer_name(const text::Json &tokenizer);

}  // namespace runnel::convert
