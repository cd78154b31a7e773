// Constraints for the answers of one model. Requests with the same grammar share its compiled form.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "engine/decode/constraint.h"
#include "engine/decode/speculation/grammar_draft.h"
#include "engine/grammar/source.h"
#include "engine/grammar/tool_grammar.h"
#include "engine/text/reasoning.h"
#include "engine/text/tokenizer.h"

namespace runnel::completion {

class Constraints {
  public:
    // The tokenizer must outlive it. `rows`: number of logits of the model. `text`: the text of a token,
    // including reasoning marks.
    Constraints(const text::Tokenizer &tokenizer, int32_t rows,
                std::function<std::string(text::TokenId)> text);

    // The constraint of one answer. If the model reasons, the grammar applies after the reasoning;
    // `begins_inside`: the answer begins inside the reasoning. Throws grammar::GrammarError.
    decode::Constraint make(const grammar::Source &source, const text::ReasoningStyle &reasoning,
                            bool begins_inside);

    // The constraint for the tool calls of one answer. Required: after the reasoning, the answer is one or more
    // calls and nothing else. Auto: the answer is free text up to the first mark of a call; the calls end the
    // answer. `style`: how the JSON of arguments is written. nullopt for Auto with a format whose calls have no
    // mark. Throws grammar::GrammarError.
    std::optional<decode::Constraint> make_calls(const text::ToolFormat &format, const text::ToolUse &tools,
                                                 const text::ReasoningStyle &reasoning, bool begins_inside,
                                                 const grammar::SchemaOptions &style = {});

    // Converts text and tokens for GrammarDraft. This object must outlive the result.
    decode::Words words() const;

  private:
    struct Known {
        grammar::Source source;
        std::string tools;  // identifies the tools if the constraint has no source
        bool behind_reasoning;
        std::shared_ptr<grammar::Masks> masks;
    };
    // The masks from known_, or newly compiled.
    std::shared_ptr<grammar::Masks> masks_of(const grammar::Source &source, const std::string &tools,
                                             bool behind_reasoning,
                                             const std::function<grammar::Program()> &compile);
    std::optional<decode::FreeText> free_text(const text::ReasoningStyle &reasoning,
                                              bool begins_inside) const;
    grammar::Expr mark(std::string_view text) const;

    const text::Tokenizer &tokenizer_;
    int32_t rows_;
    std::function<std::string(text::TokenId)> text_;
    std::shared_ptr<grammar::TokenIndex> index_;  // made on first use
    std::list<Known> known_;                      // most recently used first
};

}  // namespace runnel::completion
