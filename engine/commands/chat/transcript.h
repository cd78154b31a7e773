// The messages of a chat, and their file: {"messages": [{"role": "user", "content": "..."}, ...]}, the shape
// that rows of a batch and other programs use; a system prompt is the first message.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/commands/json.h"
#include "engine/completion/written_answer.h"
#include "engine/text/chat_template.h"

namespace runnel::commands {

// A message as {"role": ..., "content": ...} with its other members, if any.
Json message_json(const text::Message &message);
// Throws an InputError that names the message by its number.
text::Message message_from(const Json &json, size_t number);

struct Transcript {
    std::string system;                                   // empty: none
    std::vector<text::Message> messages;                  // of the user and the model, in turns
    std::vector<completion::WrittenAnswer> written = {};  // the tokens of answers; no part of a file

    // System prompt and messages, in the order of the prompt.
    std::vector<text::Message> all() const;

    // Throws what save_text() throws.
    void save(const std::string &path, bool overwrite = false) const;
    // Throws UsageError if the file cannot be opened, and InputError with the reason if it is not a
    // conversation.
    static Transcript load(const std::string &path);
};

// Writes a file, whole or not at all, that only its owner can read. Throws gguf::OutputRefused for a file
// that exists, unless `overwrite` is set or this process made the file; and OutputError.
void save_text(const std::string &path, const std::string &text, bool overwrite);

}  // namespace runnel::commands
