// Turns a request's input into token ids: applies the chat template and shortens a prompt that exceeds the
// context.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/completion/request.h"
#include "engine/text/chat_prompt.h"
#include "engine/text/infill.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"

namespace runnel::completion {

struct Prompt {
    std::vector<TokenId> tokens;
    bool is_turn = false;        // the answer is a turn of a conversation: the template's stop strings end it
    bool begins_inside = false;  // the answer begins inside the model's reasoning
    std::optional<size_t> shift_keeping = {};  // tokens that a context shift keeps; nullopt: no shift
    int64_t left_out = 0;                      // tokens dropped to fit the context
    PromptMark mark = {};                      // of a conversation
};

// How many leading tokens a full context keeps, for a system prompt of `fixed` tokens; nullopt for Error.
std::optional<size_t> kept_tokens(OverflowPolicy policy, size_t fixed, size_t context);
// Cuts a prompt that exceeds the context to 3/4 of the context, after the tokens that the policy keeps; under
// Error it stays as it is. Throws DecodeError{BadInput} for a prompt without tokens.
Prompt fitted(Prompt prompt, OverflowPolicy policy, size_t fixed, size_t context);

class PromptFormat {
  public:
    // File and tokenizer must outlive it. Throws jinja::TemplateError if options.source is not a valid
    // template, std::out_of_range for a name that the file does not have, and what set_thinking() throws.
    PromptFormat(const gguf::File &file, const text::Tokenizer &tokenizer,
                 text::ChatPromptOptions options = {})
        : tokenizer_(&tokenizer),
          chat_(file, tokenizer, std::move(options)),
          infill_(text::InfillTokens::of(file, tokenizer)) {}

    // Whether there is a chat template: the file's, or one in the options.
    bool has_template() const { return chat_.has_template(); }
    // A message for the user if the template is not used; empty otherwise.
    const std::string &note() const { return chat_.note(); }
    // Strings that end an answer if turns are plain text; otherwise the vocabulary's end tokens do.
    const std::vector<std::string> &stops() const { return chat_.stops(); }

    // Under OverflowPolicy::Error the prompt may exceed `context`. Throws DecodeError{BadInput} for an input without
    // tokens, for a suffix if the model has no infill tokens, and for a conversation that the template refuses.
    Prompt make(const Request &request, size_t context) const;
    // The whole conversation as token ids.
    std::vector<TokenId> encode(std::span<const text::Message> turns) const {
        return render(turns, nullptr, {}).tokens;
    }

    // How many of a prompt's tokens come before the first message after the system prompt.
    size_t fixed_tokens(const Messages &messages, std::span<const TokenId> tokens) const;

    // If a conversation leaves less than a quarter of the context for the answer, drops its oldest turns (for
    // DropMiddle those after the first) down to half of the context, so that the next message fits as well.
    // The last turn and a system prompt at the front stay. Returns how many messages were dropped.
    size_t drop_old_turns(std::vector<text::Message> &turns, OverflowPolicy policy, size_t context) const;

    // Separates reasoning from the answer's text. Its input is text of vocabulary(), which includes the marks
    // even if they are control tokens. `with_calls`: the mark of a tool call ends the reasoning, too.
    text::ReasoningSplitter splitter(const Prompt &prompt, bool with_calls = false) const;
    // How the model writes tool calls; null if unknown.
    const text::ToolFormat *tool_format() const { return chat_.tool_format(); }
    const text::ReasoningStyle &reasoning() const { return chat_.reasoning(); }
    // Throws std::invalid_argument if the template does not support it.
    void set_thinking(text::Thinking thinking) { chat_.set_thinking(thinking); }
    text::Thinking thinking() const { return chat_.thinking(); }
    // `with_calls`: the marks of tool calls have text as well.
    Vocabulary vocabulary(bool with_calls = false) const;
    // The marks that surround reasoning when it is printed with the answer.
    std::string opening_mark() const;
    std::string closing_mark() const;

  private:
    Prompt render(std::span<const text::Message> turns, const text::ToolUse *tools,
                  std::span<const WrittenAnswer> written) const;

    const text::Tokenizer *tokenizer_;
    text::ChatPrompt chat_;
    std::optional<text::InfillTokens> infill_;
};

}  // namespace runnel::completion
