// Drafts of text that the grammar forces, such as the next key of an object or a closing bracket.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/decode/speculation/draft_source.h"

namespace runnel::decode {

// Converts between text and tokens.
struct Words {
    std::function<std::string(TokenId)> text;
    std::function<std::vector<TokenId>(const std::string &)> tokens;  // in the middle of a text: without BOS
};

// The forced bytes are tokenized together with the text of the tokens before them, as in the whole text. The
// last token is left out, because the text after it might change how it is tokenized. The model verifies the
// draft like any other: if it prefers other tokens for the same text, these are kept.
class GrammarDraft final : public DraftSource {
  public:
    explicit GrammarDraft(Words words) : words_(std::move(words)) {}

    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override;
    std::string_view name() const override { return "grammar"; }

  private:
    Words words_;
};

}  // namespace runnel::decode
