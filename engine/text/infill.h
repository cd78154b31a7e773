// Fill-in-the-middle: the tokens around a prefix and a suffix, between which the model writes.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"
#include "gguf/file.h"

namespace runnel::text {

struct InfillTokens {
    TokenId prefix, suffix, middle;

    // From tokenizer.ggml.fim_{pre,suf,mid}_token_id, else known control tokens; nullopt: the model has none.
    static std::optional<InfillTokens> of(const gguf::File &file, const Tokenizer &tokenizer);

    // [BOS] prefix-token, prefix, suffix-token, suffix, middle-token.
    std::vector<TokenId> prompt(const Tokenizer &tokenizer, std::string_view before,
                                std::string_view after) const;
};

}  // namespace runnel::text
