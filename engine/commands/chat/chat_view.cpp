#include "engine/commands/chat/chat_view.h"

#include <unistd.h>

#include <utility>

#include "engine/commands/chat/line_editor.h"
#include "engine/commands/chat/terminal_lines.h"
#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

using Reasoning = AnswerLook::Reasoning;

std::string laid_out(std::string_view text, bool styled, bool plain) {
    const std::string printable = text::printable_for_terminal(text);
    if (plain || !terminal_moves()) return printable;
    TerminalText lines(window_size(STDOUT_FILENO).columns, styled);
    const std::string begin = lines.push(printable);
    return begin + lines.finish();
}

}  // namespace

std::string shown_text(std::string_view text, const AnswerLook &look) {
    return laid_out(text, look.colors, look.plain);
}

std::string shown_dim(std::string_view text, const AnswerLook &look) {
    const std::string lines = laid_out(text, false, look.plain);
    return look.colors ? "\x1b[2m" + lines + "\x1b[0m" : lines;
}

ChatView::ChatView(Output &out, const AnswerLook &look, const completion::PromptFormat &format)
    : out_(out), look_(look), format_(format) {
    begin_text(look_.colors);
}

ChatView::~ChatView() {
    if (fold_) out_.try_write(fold_->end(tokens_, base::seconds_since(began_)));
    if (text_) out_.try_write(text_->finish());
    if (look_.colors) out_.try_write("\x1b[0m");
}

void ChatView::begin_text(bool styled) {
    if (out_.is_terminal() && terminal_moves() && !look_.plain)
        text_.emplace(window_size(STDOUT_FILENO).columns, styled);
}

// Shown reasoning is dim if there are colors; otherwise it stands between its marks.
void ChatView::begin_reasoning() {
    if (look_.reasoning == Reasoning::Folded) fold_.emplace(look_.colors);
    if (look_.reasoning != Reasoning::Shown) return;
    if (text_) out_.write(text_->finish());
    out_.write(look_.colors ? "\x1b[2m" : format_.opening_mark());
    begin_text(false);
}

void ChatView::close_reasoning() {
    if (text_) out_.write(text_->finish());
    out_.write(look_.colors ? "\x1b[0m\n\n" : format_.closing_mark());
}

void ChatView::end_reasoning() {
    if (fold_) out_.write(fold_->end(tokens_, base::seconds_since(began_)) + "\n");
    fold_.reset();
    if (look_.reasoning == Reasoning::Hidden) return;
    if (look_.reasoning == Reasoning::Shown) close_reasoning();
    begin_text(look_.colors);
}

void ChatView::put(std::string_view text) {
    if (!out_.is_terminal()) return out_.write(text);
    const std::string printable = text::printable_for_terminal(text);
    out_.write(text_ ? text_->push(printable) : printable);
}

void ChatView::show(const completion::Piece &piece) {
    const bool is_reasoning = piece.channel == completion::Channel::Reasoning;
    if (piece.text.empty() && !(is_reasoning && in_reasoning())) return;
    const Part before = std::exchange(part_, is_reasoning ? Part::Reasoning : Part::Answer);
    if (!is_reasoning) {
        if (before == Part::Reasoning) end_reasoning();
        return put(piece.text);
    }
    if (before != Part::Reasoning) {
        began_ = base::Clock::now();
        tokens_ = 0;
        reasoning_.clear();
        if (text_ && look_.reasoning == Reasoning::Folded) out_.write(text_->finish());
        if (before == Part::Answer && look_.reasoning == Reasoning::Folded) out_.write("\n");
        begin_reasoning();
    }
    if (piece.token != text::kNoToken) ++tokens_;
    reasoning_ += piece.text;
    if (fold_) out_.write(fold_->update(tokens_));
    if (look_.reasoning == Reasoning::Shown) put(piece.text);
}

void ChatView::set_reasoning(Reasoning reasoning) {
    const Reasoning before = std::exchange(look_.reasoning, reasoning);
    if (reasoning == before || part_ != Part::Reasoning) return;
    if (fold_) out_.write(fold_->clear());
    fold_.reset();
    if (before == Reasoning::Shown) close_reasoning();
    begin_reasoning();
    if (fold_) out_.write(fold_->update(tokens_));
    if (reasoning == Reasoning::Shown) put(reasoning_);
}

void ChatView::redraw() {
    const bool is_dim = look_.colors && part_ == Part::Reasoning;
    if (fold_)
        out_.write(fold_->update(tokens_));
    else if (text_)
        out_.write("\r\x1b[J" + std::string(is_dim ? "\x1b[2m" : "") + text_->line());
}

void ChatView::resized() {
    if (text_) text_->set_columns(window_size(STDOUT_FILENO).columns);
}

}  // namespace runnel::commands
