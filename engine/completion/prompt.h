// From a request's input to token ids: the chat template, and what is left of a prompt that outgrows the
// context.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/completion/request.h"
#include "engine/text/chat_prompt.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"

namespace runnel::completion {

struct Prompt {
    std::vector<TokenId> tokens;
    bool is_turn = false;        // of a conversation: its template's stop strings end the answer
    bool begins_inside = false;  // the answer begins within the model's reasoning
    std::optional<size_t> shift_keeping = {};  // what a full context keeps; none: the answer ends
    int64_t left_out = 0;                      // tokens that did not fit
};

// Number of tokens at the beginning of a text that stay when the context is full; none under Error. `fixed`: tokens
// of system prompt at the beginning.
std::optional<size_t> kept_tokens(OverflowPolicy policy, size_t fixed, size_t context);
// The prompt as it fits the context: one that is too long loses tokens behind those that the policy keeps, so that
// a quarter of the context is left for the answer; under Error it is unchanged. Throws DecodeError{BadInput} for a
// prompt without tokens.
Prompt fitted(Prompt prompt, OverflowPolicy policy, size_t fixed, size_t context);

class PromptFormat {
  public:
    // File and tokenizer must outlive it. Throws jinja::TemplateError for a given source that is not a
    // template, std::out_of_range for a name that the file does not have, and what set_thinking() throws.
    PromptFormat(const gguf::File &file, const text::Tokenizer &tokenizer,
                 text::ChatPromptOptions options = {})
        : tokenizer_(&tokenizer), chat_(file, tokenizer, std::move(options)) {}

    // There is a chat template, of the file or given.
    bool has_template() const { return chat_.has_template(); }
    // What the user should know when it is not the template that is used; empty otherwise.
    const std::string &note() const { return chat_.note(); }
    // Strings that end an answer where turns are plain text; the vocabulary's end tokens do otherwise.
    const std::vector<std::string> &stops() const { return chat_.stops(); }

    // Throws DecodeError{BadInput} for an input without tokens, a conversation that the template refuses, a
    // prompt that exceeds `context` under OverflowPolicy::Error.
    Prompt make(const Request &request, size_t context) const;
    // The conversation as token ids, whole.
    std::vector<TokenId> encode(std::span<const text::Message> turns) const { return render(turns).tokens; }

    // Where a conversation leaves less than a quarter of the context for the answer, its oldest turns go (of
    // DropMiddle those behind the first one), down to half of it, so that this does not happen again with the
    // next message. `turns` begins with the system prompt, if there is one. Returns how many messages went.
    size_t drop_old_turns(std::vector<text::Message> &turns, OverflowPolicy policy, size_t context) const;

    // Tells reasoning from the answer's text; vocabulary() lets it see the marks, also those that are control
    // tokens.
    text::ReasoningSplitter splitter(const Prompt &prompt) const {
        return {chat_.reasoning(), prompt.begins_inside};
    }
    const text::ReasoningStyle &reasoning() const { return chat_.reasoning(); }
    // Throws std::invalid_argument if the template cannot do that.
    void set_thinking(text::Thinking thinking) { chat_.set_thinking(thinking); }
    text::Thinking thinking() const { return chat_.thinking(); }
    Vocabulary vocabulary() const;
    // How reasoning is shown among text: between these.
    std::string opening_mark() const;
    std::string closing_mark() const;

  private:
    Prompt render(std::span<const text::Message> turns) const;
    size_t fixed_tokens(std::span<const text::Message> turns, std::span<const TokenId> tokens) const;

    const text::Tokenizer *tokenizer_;
    text::ChatPrompt chat_;
};

}  // namespace runnel::completion
