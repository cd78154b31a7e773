// Conversations as token ids, by the chat template that the options and the file give.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/commands/options.h"
#include "engine/decode/answer.h"
#include "engine/text/chat_prompt.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"

namespace runnel::commands {

class Conversation {
  public:
    // The file and the tokenizer must outlive it. Throws UsageError for an option that makes no sense,
    // InputError for a template or tool definitions that cannot be used.
    Conversation(const gguf::File &file, const text::Tokenizer &tokenizer, const TemplateFlags &flags = {});

    // There is a chat template, of the file or given.
    bool has_template() const { return prompt_.has_template(); }
    // What the user should know when it is not the template that is used; empty otherwise.
    const std::string &note() const { return prompt_.note(); }
    // Strings that end an answer where turns are plain text; the vocabulary's end tokens do otherwise.
    const std::vector<std::string> &stops() const { return prompt_.stops(); }

    // The prompt that asks for the next answer. Throws InputError when the template refuses the conversation.
    struct Prompt {
        std::vector<text::TokenId> tokens;
        bool begins_inside = false;  // the answer begins within the model's reasoning
        size_t fixed =
            0;  // tokens that an overflow of the context leaves, if the caller asks: fixed_tokens()
    };
    Prompt prompt(std::span<const text::Message> messages) const;
    std::vector<text::TokenId> encode(std::span<const text::Message> messages) const {
        return prompt(messages).tokens;
    }

    // Tells reasoning from answer in the text that a model gives to a prompt; vocabulary() lets it see the
    // marks, also those that are control tokens.
    text::ReasoningSplitter splitter(const Prompt &prompt) const {
        return {prompt_.reasoning(), prompt.begins_inside};
    }
    decode::Vocabulary vocabulary() const;
    // How reasoning is shown among text: between these.
    std::string opening_mark() const;
    std::string closing_mark() const;

    // Tokens of that prompt in front of the first message that is not the system prompt's.
    size_t fixed_tokens(std::span<const text::Message> messages) const;

  private:
    const text::Tokenizer *tokenizer_;
    text::ChatPrompt prompt_;
};

// An answer as people see it: the model's reasoning told apart, and left out or put between marks.
class AnswerText {
  public:
    // Without a conversation, the text of an answer is shown as it is.
    AnswerText(const Conversation *conversation, const Conversation::Prompt &prompt, bool show_thinking);

    // What is to be shown of the answer's next piece, as far as that is certain, and at its end.
    std::string push(const std::string &piece);
    std::string end();
    const std::string &reasoning() const { return reasoning_; }

  private:
    std::string take(const std::vector<text::ReasoningSplitter::Piece> &pieces);

    const Conversation *conversation_;
    bool show_thinking_;
    std::optional<text::ReasoningSplitter> splitter_;
    std::string reasoning_;
    bool inside_ = false;
};

}  // namespace runnel::commands
