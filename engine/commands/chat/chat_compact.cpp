// What a chat does when the context is full: leaves out the oldest turns, or replaces them with a summary.
#include <algorithm>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/prompt_format.h"
#include "engine/decode/error.h"

namespace runnel::commands {
namespace {

constexpr const char *kRequest =
    "Summarize our conversation so far in a few sentences: facts, names, decisions and open questions.";
constexpr int64_t kPartOfContext = 8;  // a summary may fill 1/8 of the context

}  // namespace

// If the context is full, the prompt leaves out the oldest messages from now on.
void Chat::hide_surplus() {
    hiding_.clear();
    const auto [first, count] = model_.surplus(conversation_.transcript());
    if (count == 0) return;
    const std::vector<Conversation::Id> ids = conversation_.visible();
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
    hiding_.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    io_.note("the context of " + std::to_string(engine_.executor().context()) +
             " tokens is full: the oldest " + std::to_string(count) +
             (options_.overflow == Overflow::DropMiddle ? " messages after the first are forgotten"
                                                        : " messages are forgotten"));
}

// Replaces all turns before the last one with a summary. A template sees the summary as a turn whose question is
// kRequest. False if there is nothing to summarize or the model wrote no summary.
bool Chat::summarize() {
    const std::vector<Conversation::Id> ids = conversation_.visible();
    const auto is_question = [&](Conversation::Id id) {
        return conversation_.at(id).message.role == "user" && !conversation_.at(id).is_summary;
    };
    const auto last = std::find_if(ids.rbegin(), ids.rend(), is_question);
    if (last == ids.rend() || std::find_if(last + 1, ids.rend(), is_question) == ids.rend()) return false;
    const auto end = last.base() - 1;  // where the last turn begins
    const std::vector<Conversation::Id> old(ids.begin(), end);

    Transcript transcript = conversation_.transcript({end, ids.end()});
    transcript.messages.push_back({"user", kRequest});
    const ChatModel::Surplus surplus = model_.surplus(transcript);
    const auto first = transcript.messages.begin() + static_cast<std::ptrdiff_t>(surplus.first);
    transcript.messages.erase(first, first + static_cast<std::ptrdiff_t>(surplus.count));
    say("summarizing the oldest " + std::to_string(old.size()) + " messages:");
    // Without a terminal, the summary goes to stderr: stdout has answers only.
    ChatModel::View shown = view(terminal_ ? io_.out : io_.err);
    if (!terminal_) shown.look.reasoning = AnswerLook::Reasoning::Hidden;
    const text::Message summary = model_.answer(
        transcript, shown, [](const text::Message &) {}, engine_.executor().context() / kPartOfContext);
    if (model_.interrupted()) lines_->hold_typed();
    const bool is_cut = model_.interrupted() || model_.timed_out();
    if (model_.interrupted() && !terminal_) {
        over_ = true;
        code_ = exit_code::kInterrupted;
    }
    if (is_cut || summary.content.find_first_not_of(" \t\n") == std::string::npos) {
        say("the model wrote no summary: nothing has changed");
        return false;
    }
    conversation_.add({.message = {"user", kRequest}, .hides = old, .is_summary = true});
    conversation_.add(
        {.message = {"assistant", summary.content}, .is_summary = true, .stream = model_.stream()});
    say("the summary replaces those messages from now on; /undo removes it");
    return true;
}

bool Chat::make_room(const std::string &message) {
    if (!options_.compact) return true;
    model_.forget_ending();
    try {
        if (model_.surplus(conversation_.transcript_with(message)).count > 0) summarize();
    } catch (const decode::DecodeError &error) {
        if (error.kind != decode::DecodeError::Kind::BadInput)
            throw;  // a BadInput is reported with the answer
    }
    return !model_.interrupted();
}

void Chat::compact(const std::string &) {
    model_.forget_ending();
    if (!summarize()) say("nothing was summarized: the last turn stays as it is");
}

}  // namespace runnel::commands
