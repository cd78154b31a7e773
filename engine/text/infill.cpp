#include "engine/text/infill.h"

#include <string>

#include "engine/text/metadata.h"

namespace runnel::text {
namespace {

constexpr struct {
    std::string_view prefix, suffix, middle;
} kKnown[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
    {"<PRE>", "<SUF>", "<MID>"},
};

}  // namespace

std::optional<InfillTokens> InfillTokens::of(const gguf::File &file, const Tokenizer &tokenizer) {
    const auto by_key = [&](const char *name) {
        return get_token_id(file, std::string("tokenizer.ggml.") + name,
                            static_cast<size_t>(tokenizer.size()));
    };
    const auto prefix = by_key("fim_pre_token_id"), suffix = by_key("fim_suf_token_id"),
               middle = by_key("fim_mid_token_id");
    if (prefix && suffix && middle) return InfillTokens{*prefix, *suffix, *middle};
    for (const auto &known : kKnown) {
        const auto first = tokenizer.find(known.prefix), second = tokenizer.find(known.suffix),
                   third = tokenizer.find(known.middle);
        if (first && second && third && tokenizer.is_control(*first) && tokenizer.is_control(*second) &&
            tokenizer.is_control(*third))
            return InfillTokens{*first, *second, *third};
    }
    return std::nullopt;
}

std::vector<TokenId> InfillTokens::prompt(const Tokenizer &tokenizer, std::string_view before,
                                          std::string_view after) const {
    std::vector<TokenId> tokens;
    const auto append = [&](std::string_view text, bool continues) {
        const auto part = tokenizer.encode(text, {.add_special = false, .continues = continues});
        tokens.insert(tokens.end(), part.begin(), part.end());
    };
    if (tokenizer.adds_bos() && tokenizer.bos()) tokens.push_back(*tokenizer.bos());
    tokens.push_back(prefix);
    append(before, false);
    tokens.push_back(suffix);
    append(after, true);
    tokens.push_back(middle);
    return tokens;
}

}  // namespace runnel::text
