// The tokens with a role: which begin a text, end it, end a turn; and whether the model wants them added.
#pragma once

#include <string_view>
#include <vector>

#include "engine/text/pre_tokenizer.h"
#include "engine/text/token.h"
#include "engine/text/vocabulary.h"
#include "gguf/file.h"

namespace runnel::text {

struct SpecialTokens {
    TokenId bos = kNoToken, eos = kNoToken, eot = kNoToken, unknown = kNoToken;
    bool add_bos = false, add_eos = false;   // never without a bos, an eos
    std::vector<TokenId> end_of_generation;  // ascending

    // From tokenizer.ggml.{bos,eos,eot,eom,unknown,fim_*}_token_id, add_{bos,eos}_token and, for what files
    // leave out, from the texts of known control tokens. Those become type Control in `vocabulary`, whatever
    // the file says: what ends a turn must not be made from ordinary text. `kind` is null for SentencePiece.
    // Throws TokenizerError.
    static SpecialTokens load(const gguf::File &file, Vocabulary &vocabulary, const PreTokenizerKind *kind);
};

}  // namespace runnel::text
