// Constraints for the answers of one model: grammars are compiled once, however many requests share them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "engine/decode/constraint.h"
#include "engine/decode/speculation/grammar_draft.h"
#include "engine/grammar/source.h"
#include "engine/text/reasoning.h"
#include "engine/text/tokenizer.h"

namespace runnel::completion {

class Constraints {
  public:
    // The tokenizer must outlive it. `rows`: logits of the model. `text`: of tokens, marks of reasoning
    // included.
    Constraints(const text::Tokenizer &tokenizer, int32_t rows,
                std::function<std::string(text::TokenId)> text);

    // For one answer. Where the model reasons, the grammar begins behind the reasoning: `begins_inside` says
    // that the answer begins within it. Throws grammar::GrammarError.
    decode::Constraint make(const grammar::Source &source, const text::ReasoningStyle &reasoning,
                            bool begins_inside);

    // For drafts of forced text. This object must outlive it.
    decode::Words words() const;

  private:
    struct Known {
        grammar::Source source;
        bool behind_reasoning;
        std::shared_ptr<grammar::Masks> masks;
    };
    std::shared_ptr<grammar::Masks> masks_of(const grammar::Source &source, bool behind_reasoning);

    const text::Tokenizer &tokenizer_;
    int32_t rows_;
    std::function<std::string(text::TokenId)> text_;
    std::shared_ptr<grammar::TokenIndex> index_;  // made when it is first needed
    std::list<Known> known_;                      // the newest use first
};

}  // namespace runnel::completion
