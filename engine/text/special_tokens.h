// The tokens with a role: begin of text, end of text, end of turn; and whether they are added to prompts.
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
    bool add_bos = false, add_eos = false;   // never set without a bos, an eos
    std::vector<TokenId> end_of_generation;  // ascending

    // From tokenizer.ggml.{bos,eos,eot,eom,unknown,fim_*}_token_id and add_{bos,eos}_token; roles that files
    // omit are taken from the texts of known control tokens. These get type Control in `vocabulary` whatever
    // the file says, because ordinary text must not produce the end of a turn. `kind` is null
    // except for "gpt2". default_ids: without its key, a role has SentencePiece's usual id. Throws TokenizerError.
    static SpecialTokens load(const gguf::File &file, Vocabulary &vocabulary, const PreTokenizerKind *kind,
                              bool default_ids);
};

}  // namespace runnel::text
