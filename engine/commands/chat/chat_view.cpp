#include "engine/commands/chat/chat_view.h"

#include <unistd.h>

#include <utility>

#include "engine/commands/chat/line_editor.h"
#include "engine/commands/chat/terminal_lines.h"
#include "engine/text/utf8.h"

namespace runnel::commands {

ChatView::ChatView(Output &out, bool colors, bool shows_reasoning, const completion::PromptFormat &format)
    : out_(out), colors_(colors), shows_reasoning_(shows_reasoning), format_(format) {
    begin(false);
}

ChatView::~ChatView() {
    if (text_) out_.try_write(text_->finish());
    if (colors_) out_.try_write("\x1b[0m");
}

// Reasoning is shown dim and without Markdown styles.
void ChatView::begin(bool reasoning) {
    if (out_.is_terminal() && terminal_moves())
        text_.emplace(window_size(STDOUT_FILENO).columns, colors_ && !reasoning);
}

void ChatView::show(const completion::Piece &piece) {
    const bool is_reasoning = piece.channel == completion::Channel::Reasoning;
    if (piece.text.empty() || (is_reasoning && !shows_reasoning_)) return;
    if (is_reasoning != std::exchange(inside_, is_reasoning)) {
        if (text_) out_.write(text_->finish());
        if (!colors_)
            out_.write(inside_ ? format_.opening_mark() : format_.closing_mark());
        else
            out_.write(inside_ ? "\x1b[2m" : "\x1b[0m\n\n");
        begin(is_reasoning);
    }
    if (!out_.is_terminal()) return out_.write(piece.text);
    const std::string printable = text::printable_for_terminal(piece.text);
    out_.write(text_ ? text_->push(printable) : printable);
}

}  // namespace runnel::commands
