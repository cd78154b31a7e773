#include "engine/commands/chat/chat_view.h"

#include "engine/text/utf8.h"

namespace runnel::commands {

void ChatView::show(const completion::Piece &piece) {
    const bool is_reasoning = piece.channel == completion::Channel::Reasoning;
    if (piece.text.empty() || (is_reasoning && !shows_reasoning_)) return;
    if (is_reasoning != std::exchange(inside_, is_reasoning)) {
        if (!colors_)
            out_.write(inside_ ? format_.opening_mark() : format_.closing_mark());
        else
            out_.write(inside_ ? "\x1b[0;2m" : std::string("\n\n") + kAnswer);
    }
    out_.write(out_.is_terminal() ? text::printable_for_terminal(piece.text) : piece.text);
}

}  // namespace runnel::commands
