// How the answers of a chat look, and what the keys of the terminal change while one is written.
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "gguf/printable.h"

namespace runnel::commands {

using Reasoning = AnswerLook::Reasoning;

namespace {

constexpr std::pair<const char *, Reasoning> kReasoning[] = {
    {"on", Reasoning::Shown}, {"folded", Reasoning::Folded}, {"off", Reasoning::Hidden}};

}  // namespace

AnswerLook Chat::look_at_start() const {
    const Reasoning by_default = terminal_ ? Reasoning::Folded : Reasoning::Hidden;
    const auto &shows = options_.show_thinking;
    return {color_, options_.plain, !shows ? by_default : *shows ? Reasoning::Shown : Reasoning::Hidden};
}

// With plain answers, reasoning is never folded; with -q, folded reasoning has no line of its own.
AnswerLook Chat::answer_look() const {
    AnswerLook look = look_;
    if (look.reasoning == Reasoning::Folded && look.plain) look.reasoning = Reasoning::Shown;
    if (look.reasoning == Reasoning::Folded && io_.quiet) look.reasoning = Reasoning::Hidden;
    return look;
}

ChatModel::View Chat::view(Output &out) {
    ChatModel::View view{out, answer_look(), terminal_};
    view.watch = [this](decode::StopRequest &stop, ChatView *shown) { watch(stop, shown); };
    return view;
}

void Chat::watch(decode::StopRequest &stop, ChatView *view) {
    const LineSource::Watched seen = lines_->watch(view && view->in_reasoning());
    if (seen.interrupted) stop.request(decode::StopRequest::Reason::Interrupt);
    if (!view) return;
    if (seen.resized) view->resized();
    if (seen.redraw) view->redraw();
    if (!seen.toggled) return;
    look_.reasoning = look_.reasoning == Reasoning::Shown ? Reasoning::Folded : Reasoning::Shown;
    view->set_reasoning(answer_look().reasoning);
}

// Ctrl-T at the prompt: when it unfolds, it also shows the reasoning of the last answer.
std::string Chat::toggle_reasoning() {
    const bool shows = look_.reasoning != Reasoning::Shown;
    look_.reasoning = shows ? Reasoning::Shown : Reasoning::Folded;
    const std::string note = shows ? "reasoning is shown from now on" : "reasoning is folded from now on";
    const std::string line = shown_dim(note, look_) + "\n";
    const Conversation::Id head = conversation_.head();
    if (!shows || head == Conversation::kRoot || conversation_.at(head).message.reasoning.empty())
        return line;
    return shown_dim(conversation_.at(head).message.reasoning, look_) + "\n" + line;
}

// /set plain and /set show-thinking. False for other names.
bool Chat::set_look(const std::string &name, const std::string &value) {
    if (name == "plain") {
        if (value != "on" && value != "off") throw InputError("plain: on or off, not " + gguf::quoted(value));
        look_.plain = value == "on";
        say(look_.plain ? "answers are shown as the model writes them" : "answers are shown with Markdown");
        return true;
    }
    if (name != "show-thinking" && name != "show_thinking") return false;
    for (const auto &[word, reasoning] : kReasoning)
        if (value == word) {
            look_.reasoning = reasoning;
            say("reasoning is " + std::string(reasoning == Reasoning::Shown    ? "shown"
                                              : reasoning == Reasoning::Folded ? "folded"
                                                                               : "hidden"));
            return true;
        }
    throw InputError("show-thinking: on, folded or off, not " + gguf::quoted(value));
}

// The lines of /show.
std::string Chat::look_text() const {
    std::string text = std::string("plain ") + (look_.plain ? "on" : "off") + "\n";
    for (const auto &[word, reasoning] : kReasoning)
        if (reasoning == look_.reasoning) text += std::string("show-thinking ") + word + "\n";
    return text;
}

}  // namespace runnel::commands
