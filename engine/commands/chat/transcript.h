// What was said in a chat, and its file: {"messages": [{"role": "user", "content": "..."}, ...]}, the shape
// that rows of a batch and other programs use; a system prompt is the first message.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/text/chat_template.h"

namespace runnel::commands {

struct Transcript {
    std::string system;                   // empty: none
    std::vector<text::Message> messages;  // of the user and the model, in turns

    // System prompt and messages, as a template wants them.
    std::vector<text::Message> all() const;

    // Takes back the newest message of the user and what came after it. Returns it; empty when there is none.
    std::string undo();
    // Forgets the oldest turn (a message of the user and what came after it), unless it is the only one.
    bool forget_oldest();
    // Takes out the oldest turn, unless it is the only one.
    std::vector<text::Message> take_first();

    // The file appears whole or not at all, for its owner alone. Throws gguf::OutputRefused for one that is
    // there already, unless it is to be overwritten or this process made it; OutputError.
    void save(const std::string &path, bool overwrite = false) const;
    // Throws UsageError when the file cannot be opened, InputError when it is no conversation, naming what is
    // wrong with it.
    static Transcript load(const std::string &path);
};

}  // namespace runnel::commands
