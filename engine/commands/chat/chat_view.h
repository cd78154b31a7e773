// Shows an answer of a chat piece by piece: in color with dimmed reasoning, or without color and with reasoning
// between its marks.
#pragma once

#include <string>
#include <utility>

#include "engine/commands/io.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt.h"

namespace runnel::commands {

class ChatView {
  public:
    // Keeps both references. The destructor ends the colors, also after an error.
    ChatView(Output &out, bool colors, bool shows_reasoning, const completion::PromptFormat &format)
        : out_(out), colors_(colors), shows_reasoning_(shows_reasoning), format_(format) {
        if (colors_) out_.write(kAnswer);
    }
    ~ChatView() {
        if (colors_) out_.try_write("\x1b[0m");
    }
    ChatView(const ChatView &) = delete;
    ChatView &operator=(const ChatView &) = delete;

    void show(const completion::Piece &piece);

  private:
    static constexpr const char *kAnswer = "\x1b[0;36m";
    Output &out_;
    bool colors_, shows_reasoning_;
    const completion::PromptFormat &format_;
    bool inside_ = false;
};

}  // namespace runnel::commands
