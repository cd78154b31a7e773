// Shows an answer of a chat piece by piece: on a terminal wrapped between words, with light Markdown and dimmed
// reasoning if there are colors; elsewhere as it is, with reasoning between its marks.
#pragma once

#include <optional>
#include <string>

#include "engine/commands/chat/terminal_text.h"
#include "engine/commands/io.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt.h"

namespace runnel::commands {

class ChatView {
  public:
    // Keeps both references.
    ChatView(Output &out, bool colors, bool shows_reasoning, const completion::PromptFormat &format);
    // Writes what is held back and ends the colors, also after an error.
    ~ChatView();
    ChatView(const ChatView &) = delete;
    ChatView &operator=(const ChatView &) = delete;

    void show(const completion::Piece &piece);

  private:
    void begin(bool reasoning);

    Output &out_;
    bool colors_, shows_reasoning_;
    const completion::PromptFormat &format_;
    std::optional<TerminalText> text_;  // on a terminal that moves its cursor
    bool inside_ = false;
};

}  // namespace runnel::commands
