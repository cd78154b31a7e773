// Drafts of text that the grammar forces: a key that must come now, a bracket that must close.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/decode/speculation/draft_source.h"

namespace runnel::decode {

// Between text and tokens.
struct Words {
    std::function<std::string(TokenId)> text;
    std::function<std::vector<TokenId>(const std::string &)> tokens;  // as in the middle of a text
};

// The forced bytes are cut into tokens together with the text of the tokens before them, as the tokenizer
// would cut the whole. The last token is left out where the text goes on behind it, for it might be cut
// differently then. The model has the last word, as with every draft: where it cuts otherwise, its cut stays.
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
