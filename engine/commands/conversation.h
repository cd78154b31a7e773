// Conversations as token ids: by the file's chat template where its shape is known, otherwise by a fallback.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"

namespace runnel::commands {

class Conversation {
  public:
    // The file and the tokenizer must outlive it.
    Conversation(const gguf::File &file, const text::Tokenizer &tokenizer);

    // The file has a chat template, of whatever shape.
    bool has_template() const { return has_template_; }
    // What the user should know when the shape is not the file's own; empty otherwise.
    const std::string &note() const { return note_; }
    // Strings that end an answer where turns are plain text; the vocabulary's end tokens do otherwise.
    const std::vector<std::string> &stops() const { return stops_; }

    // The prompt that asks for the next answer.
    std::vector<text::TokenId> encode(std::span<const text::Message> messages) const;

  private:
    const text::Tokenizer *tokenizer_;
    text::ChatShape shape_;
    text::TemplateTokens tokens_;
    bool has_template_ = false;
    std::string note_;
    std::vector<std::string> stops_;
};

}  // namespace runnel::commands
