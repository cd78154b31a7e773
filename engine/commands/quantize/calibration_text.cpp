#include "engine/commands/quantize/calibration_text.h"

#include <algorithm>

#include "gguf/printable.h"

namespace runnel::commands {

std::vector<text::TokenId> plain_chunks_of(const CalibrationText &from, const text::Tokenizer &tokenizer,
                                           const decode::StopRequest &stop, Io &io) {
    std::string text = read_all(from.path, io.in, &stop);
    if (text.ends_with('\n')) text.pop_back();  // llama.cpp also drops it from prompt files
    std::vector<text::TokenId> tokens = tokenizer.encode(text);
    const auto size = static_cast<size_t>(from.chunk_size);
    size_t chunks = tokens.size() / size;
    if (chunks == 0)
        throw InputError(gguf::printable(from.path, 1024) + " has " + std::to_string(tokens.size()) +
                         " tokens; a chunk needs " + std::to_string(size) + " (a smaller one with -c)");
    if (from.chunks > 0) chunks = std::min(chunks, static_cast<size_t>(from.chunks));
    tokens.resize(chunks * size);
    return tokens;
}

std::vector<text::TokenId> chunks_of(const CalibrationText &from, const text::Tokenizer &tokenizer,
                                     const decode::StopRequest &stop, Io &io) {
    std::vector<text::TokenId> tokens = plain_chunks_of(from, tokenizer, stop, io);
    const auto size = static_cast<size_t>(from.chunk_size);
    if (tokenizer.adds_bos() && tokenizer.bos())
        for (size_t at = 0; at < tokens.size(); at += size) tokens[at] = *tokenizer.bos();
    return tokens;
}

}  // namespace runnel::commands
