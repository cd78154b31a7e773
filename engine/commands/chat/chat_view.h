// Shows an answer of a chat piece by piece: on a terminal wrapped between words, with light Markdown and dimmed or
// folded reasoning; elsewhere as it is, with reasoning between its marks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/commands/chat/answer_progress.h"
#include "engine/commands/chat/terminal_text.h"
#include "engine/commands/io.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt.h"

namespace runnel::commands {

// How answers are shown.
struct AnswerLook {
    enum class Reasoning { Hidden, Folded, Shown };
    bool colors = false;
    bool plain = false;  // no Markdown and no added line breaks, even on a terminal
    Reasoning reasoning = Reasoning::Hidden;
};

// Text that the model wrote, laid out for the terminal of standard output in this look.
std::string shown_text(std::string_view text, const AnswerLook &look);
// The same for reasoning and for what the chat says: dim, without Markdown.
std::string shown_dim(std::string_view text, const AnswerLook &look);

class ChatView {
  public:
    // Keeps both references.
    ChatView(Output &out, const AnswerLook &look, const completion::PromptFormat &format);
    // Writes the text that is still held back and ends the colors, after an error as well.
    ~ChatView();
    ChatView(const ChatView &) = delete;
    ChatView &operator=(const ChatView &) = delete;

    void show(const completion::Piece &piece);
    // Whether the model reasons now.
    bool in_reasoning() const { return part_ == Part::Reasoning; }
    // Unfolds the reasoning in progress (and shows it from its beginning), or folds it (text already shown remains).
    void set_reasoning(AnswerLook::Reasoning reasoning);
    // Writes the line in progress again, after the output of other programs.
    void redraw();
    // Call when the window's size has changed.
    void resized();

  private:
    enum class Part { None, Reasoning, Answer };
    void begin_text(bool styled);
    void begin_reasoning();
    void close_reasoning();  // ends reasoning that is shown
    void end_reasoning();
    void put(std::string_view text);

    Output &out_;
    AnswerLook look_;
    const completion::PromptFormat &format_;
    Part part_ = Part::None;
    std::optional<TerminalText> text_;  // on a terminal that moves its cursor
    std::optional<ThinkingLine> fold_;  // while reasoning is folded
    std::string reasoning_;             // the reasoning so far
    size_t tokens_ = 0;                 // the number of its tokens
    base::Clock::time_point began_;     // when it began
};

}  // namespace runnel::commands
