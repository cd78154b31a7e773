// How a chat shows an answer on its way out: in color, reasoning dimmed, or between its marks where there is
// no color.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "engine/commands/io.h"
#include "engine/commands/terminal.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt.h"

namespace runnel::commands {

class ChatView {
  public:
    // All are kept. Colors end with it, also when the answer ends with an error.
    ChatView(Output &out, bool colors, bool shows_reasoning, const completion::PromptFormat &format)
        : out_(out), colors_(colors), shows_reasoning_(shows_reasoning), format_(format) {
        if (!colors_) return;
        guard_.emplace(1);
        out_.write(kAnswer);
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
    std::optional<ColorScope> guard_;  // a signal leaves no color behind, either
    bool inside_ = false;
};

}  // namespace runnel::commands
