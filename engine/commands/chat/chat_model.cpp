#include "engine/commands/chat/chat_model.h"

#include <chrono>
#include <utility>
#include <variant>

#include "engine/commands/chat/answer_progress.h"
#include "engine/commands/chat/chat_view.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/json.h"
#include "engine/commands/prompt_format.h"

namespace runnel::commands {

using completion::Done;
using completion::Piece;

ChatModel::ChatModel(const ChatOptions &options, decode::Engine &engine,
                     std::unique_ptr<decode::Drafting> drafts, Io &io)
    : options_(options),
      engine_(engine),
      io_(io),
      settings_(options.generation),
      sampling_(sampling_options(settings_)),
      constraint_(constraint_of(settings_.constraint, io)),
      format_(prompt_format(engine, options.chat)),
      tools_(tool_use(options.chat, format_, io)),
      drafts_(std::move(drafts)),
      queue_(engine, format_, {.parallel = 1, .drafts = speculators(drafts_.get())}) {}

void ChatModel::apply_settings() {
    sampling_ = sampling_options(settings_);
    constraint_ = constraint_of(settings_.constraint, io_);
    queue_.forget_drafts(kept_);  // they were made for the old settings
}

size_t ChatModel::tokens_of(const Transcript &transcript) const {
    return transcript.messages.empty() ? 0 : format_.encode(transcript.all()).size();
}

void ChatModel::make_room(Transcript &transcript) const {
    std::vector<text::Message> turns = transcript.all();
    const bool in_middle = options_.overflow == Overflow::DropMiddle;
    const size_t gone =
        format_.drop_old_turns(turns, options_.overflow, static_cast<size_t>(engine_.executor().context()));
    if (gone == 0) return;
    const auto begin = turns.begin() + (transcript.system.empty() ? 0 : 1);
    transcript.messages.assign(begin, turns.end());
    io_.note("the context of " + std::to_string(engine_.executor().context()) +
             " tokens is full: the oldest " + std::to_string(gone) +
             (in_middle ? " messages behind the first are forgotten" : " messages are forgotten"));
}

completion::Request ChatModel::request_of(const Transcript &transcript) const {
    return {.input = completion::Messages{transcript.all(), tools_},
            .sampling = sampling_,
            .stream = stream_,
            .limits = limits(settings_),
            .constraint = constraint_,
            .close = settings_.constraint.close,
            .thinking_budget = options_.chat.thinking_budget,
            .overflow = options_.overflow,
            .continue_from = kept_,
            .keep = true};
}

text::Message ChatModel::answer(Transcript &transcript, bool color, bool shows_reasoning, bool is_terminal) {
    make_room(transcript);
    decode::StopRequest stop;
    const InterruptScope interrupts(
        stop, is_terminal ? InterruptScope::Repeated::Ignored : InterruptScope::Repeated::Kills);
    std::optional<decode::DeadlineTimer> deadline;
    if (options_.generation.deadline)
        deadline.emplace(stop, std::chrono::duration<double>(*options_.generation.deadline));
    text::Message answer{"assistant", "", ""};
    std::optional<Done> done;
    {
        std::optional<ChatView> view;
        ReadingProgress reading(io_);
        const auto take_events = [&] {
            for (const completion::Event &event : queue_.events()) {
                if (const auto *piece = std::get_if<Piece>(&event)) {
                    if (!view) view.emplace(io_.out, color, shows_reasoning, format_);
                    view->show(*piece);
                    (piece->channel == completion::Channel::Reasoning ? answer.reasoning : answer.content) +=
                        piece->text;
                } else if (const auto *end = std::get_if<Done>(&event)) {
                    done = *end;
                } else if (const auto *prefill = std::get_if<completion::Prefill>(&event)) {
                    reading.show(*prefill);
                }
            }
        };
        const completion::RequestId id = queue_.submit(request_of(transcript));
        try {
            while (!done) {
                const bool going = queue_.step(&stop);
                take_events();
                if (going || done) continue;
                queue_.end_all(finish_reason(stop));
                take_events();
            }
        } catch (...) {  // the chat may continue
            queue_.cancel(id);
            throw;
        }
    }
    if (!done->error.empty()) queue_.release(done->kept);
    expect_answer(*done);
    io_.out.write("\n");
    if (!done->calls.empty()) answer.tool_calls = dump(text::calls_json(done->calls));
    note_calls(*done, io_);  // the results come with a transcript that has them (/load)
    finish(*done);
    if (ended_in_reasoning(*done, !answer.reasoning.empty(), !answer.content.empty()))
        io_.note(
            "the answer did not begin: the model was still reasoning (/think off and --thinking-budget bound "
            "it)");
    return answer;
}

void ChatModel::finish(const Done &done) {
    queue_.release(std::exchange(kept_, done.kept));
    report_ = commands::report(options_.model.path, sampling_.seed, engine_, done);
    if (done.usage.forgotten > 0)
        io_.note("the context was full: the oldest " + std::to_string(done.usage.forgotten) +
                 " tokens behind the system prompt were forgotten");
    if (done.context_full) io_.note("the context is full: the answer ends here");
    write_stats(options_.stats, *report_, io_);
    interrupted_ = done.reason == completion::FinishReason::Interrupt;
    show_answer_line(done, engine_.executor().context(), terminal_colors(options_.color), io_);
}

}  // namespace runnel::commands
