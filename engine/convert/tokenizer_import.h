// The tokenizer of a Hugging Face folder as metadata of a GGUF file.
//
// From tokenizer.json: byte-level BPE ("gpt2", with the splitting recognized by pre_tokenizer_match.h), or BPE with
// byte tokens and "▁" for blanks ("llama": Llama 2, Gemma, Mistral), whose scores are the ranks of its merges.
// Special tokens come from tokenizer_config.json, config.json and generation_config.json; the chat template from
// chat_template.jinja, tokenizer_config.json or chat_template.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/convert/config.h"
#include "gguf/writer.h"

namespace runnel::convert {

// Adds tokenizer.ggml.* and tokenizer.chat_template*. vocabulary: rows of the token table; ids without a token become
// unused ones. Returns notes for the user. Throws gguf::FileError.
std::vector<std::string> import_tokenizer(const std::filesystem::path &folder, const Config &config,
                                          uint64_t vocabulary, gguf::Writer &out);

}  // namespace runnel::convert
