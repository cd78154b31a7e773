// Prepares a request's answer: its prompt, limits, vocabulary, sampler and constraint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/completion/answer.h"
#include "engine/completion/constraints.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"
#include "engine/completion/text_channels.h"
#include "engine/decode/engine.h"
#include "engine/decode/sampler.h"

namespace runnel::completion {

struct Prepared {
    Prompt prompt;
    decode::Sampler sampler;  // without a constraint
    Limits limits;
    const Vocabulary *vocabulary;                // owned by the preparer
    std::shared_ptr<const text::ToolUse> tools;  // the text is searched for calls of these; null: none
    TextChannels channels;
};

class Preparer {
  public:
    // Engine and format must outlive it.
    Preparer(decode::Engine &engine, const PromptFormat &format);
    // For requests with Tokens as input and without constraints.
    Preparer(decode::Executor &executor, Vocabulary vocabulary);

    // Throws DecodeError{BadInput} and what the tokenizer and the template throw.
    Prepared prepare(const Request &request) const;
    // The constraint on the answer's text or its tool calls, and on banned texts; nullopt if there is none.
    // Throws DecodeError{BadInput} and grammar::GrammarError.
    std::optional<decode::Constraint> constraint(const Request &request, const Prepared &prepared);
    // Limits the reasoning in the sampler if the request does. `dropped`: tokens that a continued sequence
    // dropped before the prompt.
    void limit_thinking(const Request &request, const Prepared &prepared, int64_t dropped,
                        decode::Sampler &sampler) const;
    // For drafts of text that a grammar forces. Precondition: constraint() gave one with a grammar.
    decode::Words words() const { return constraints_->words(); }

  private:
    Prompt prompt_of(const Request &request) const;
    std::optional<decode::Constraint> grammar_constraint(const Request &request, const Prepared &prepared);
    std::shared_ptr<const text::ToolUse> tools_of(const Request &request) const;

    decode::Executor *executor_;
    Vocabulary vocabulary_;
    const decode::Engine *engine_ = nullptr;
    const PromptFormat *format_ = nullptr;
    Vocabulary turn_vocabulary_;                             // includes the marks of reasoning
    Vocabulary call_vocabulary_;                             // and those of tool calls
    std::unique_ptr<Constraints> constraints_;               // made for the first constraint
    std::shared_ptr<const decode::TokenTexts> token_texts_;  // made for the first ban
    std::shared_ptr<decode::Bans> bans_;                     // of the newest request with bans
};

}  // namespace runnel::completion
