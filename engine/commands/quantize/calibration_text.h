// The texts on which `imatrix` and `quantize` observe a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/decode/stop_request.h"
#include "engine/text/tokenizer.h"

namespace runnel::commands {

struct CalibrationText {
    std::string path;    // -: standard input
    int32_t chunk_size;  // tokens
    int64_t chunks;      // most chunks; -1: all
};

// Whole chunks, one after the other. Throws InputError if the text is shorter than one chunk, and what reading it throws.
std::vector<text::TokenId> plain_chunks_of(const CalibrationText &text, const text::Tokenizer &tokenizer,
                                           const decode::StopRequest &stop, Io &io);
// BOS replaces the first token of each chunk if the tokenizer adds it.
std::vector<text::TokenId> chunks_of(const CalibrationText &text, const text::Tokenizer &tokenizer,
                                     const decode::StopRequest &stop, Io &io);

}  // namespace runnel::commands
