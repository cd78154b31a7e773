#include "engine/commands/chat/chat_model.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <variant>

#include "engine/commands/chat/answer_progress.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/json.h"
#include "engine/commands/prompt_format.h"

namespace runnel::commands {

using completion::Done;
using completion::Piece;
using completion::SequenceHandle;

namespace {

std::shared_ptr<const text::ToolUse> without_required_call(const std::shared_ptr<const text::ToolUse> &use) {
    if (!use || use->choice != text::ToolUse::Choice::Required) return use;
    auto free = std::make_shared<text::ToolUse>(*use);
    free->choice = text::ToolUse::Choice::Auto;
    free->only.clear();
    return free;
}

}  // namespace

ChatModel::ChatModel(const ChatOptions &options, decode::Engine &engine,
                     std::unique_ptr<decode::Drafting> drafts, const Json &tools, Io &io)
    : options_(options),
      engine_(engine),
      io_(io),
      settings_(with_file_sampling(options.generation, engine.file(), io)),
      sampling_(sampling_options(settings_)),
      constraint_(constraint_of(settings_.constraint, io)),
      format_(prompt_format(engine, options.chat, tools)),
      tools_(tool_use(options.chat, format_, io, tools)),
      after_call_(without_required_call(tools_)),
      runs_calls_(!tools.is_null()),
      drafts_(std::move(drafts)),
      queue_(engine, format_, {.parallel = 1, .drafts = speculators(drafts_.get())}),
      stored_(options.store, options.model, engine) {}

void ChatModel::apply_settings() {
    sampling_ = sampling_options(settings_);
    constraint_ = constraint_of(settings_.constraint, io_);
    for (const SequenceHandle handle : kept_) queue_.forget_drafts(handle);  // made for the old settings
}

size_t ChatModel::tokens_of(const Transcript &transcript) const {
    return transcript.messages.empty() ? 0 : format_.encode(transcript.all()).size();
}

ChatModel::Surplus ChatModel::surplus(const Transcript &transcript) const {
    std::vector<text::Message> turns = transcript.all();
    const size_t count =
        format_.drop_old_turns(turns, options_.overflow, static_cast<size_t>(engine_.executor().context()));
    if (options_.overflow != Overflow::DropMiddle) return {0, count};
    size_t first = 1;  // the first turn stays
    while (first < transcript.messages.size() && transcript.messages[first].role != "user") ++first;
    return {first, count};
}

completion::Request ChatModel::request_of(const Transcript &transcript) const {
    const bool has_results = !transcript.messages.empty() && transcript.messages.back().role == "tool";
    return {.input = completion::Messages{transcript.all(), has_results ? after_call_ : tools_,
                                          transcript.written},
            .sampling = sampling_,
            .stream = stream_,
            .limits = limits(settings_),
            .constraint = constraint_,
            .json_style = json_style(settings_.constraint),
            .close = settings_.constraint.close,
            .thinking_budget = options_.chat.thinking_budget,
            .overflow = options_.overflow,
            .keep = true};
}

text::Message ChatModel::answer(const Transcript &transcript, const View &shown, const Save &save,
                                int64_t most) {
    forget_ending();
    decode::StopRequest stop;
    const InterruptScope interrupts(
        stop, shown.is_terminal ? InterruptScope::Repeated::Ignored : InterruptScope::Repeated::Kills);
    std::optional<decode::DeadlineTimer> deadline;
    if (options_.generation.deadline)
        deadline.emplace(stop, std::chrono::duration<double>(*options_.generation.deadline));
    text::Message answer{"assistant", "", ""};
    std::optional<Done> done;
    {
        std::optional<ChatView> view;
        ReadingProgress reading(io_);
        bool noted = false;
        const auto take_events = [&] {
            for (const completion::Event &event : queue_.events()) {
                if (const auto *piece = std::get_if<Piece>(&event)) {
                    if (!view) view.emplace(shown.out, shown.look, format_);
                    view->show(*piece);
                    (piece->channel == completion::Channel::Reasoning ? answer.reasoning : answer.content) +=
                        piece->text;
                } else if (const auto *end = std::get_if<Done>(&event)) {
                    done = *end;
                } else if (const auto *prefill = std::get_if<completion::Prefill>(&event)) {
                    if (prefill->left_out > 0 && !std::exchange(noted, true))
                        io_.note("the system prompt and the message outgrow the context of " +
                                 std::to_string(engine_.executor().context()) + " tokens: " +
                                 std::to_string(prefill->left_out) + " tokens in the middle are left out");
                    reading.show(*prefill);
                }
            }
        };
        completion::Request request = request_of(transcript);
        load_stored(request);
        request.continue_from = best_for(request);
        if (int64_t &limit = request.limits.max_tokens; most >= 0 && (limit < 0 || limit > most))
            limit = most;
        // One speculator at a time: each has a cache of its own.
        for (const SequenceHandle handle : kept_)
            if (handle != request.continue_from) queue_.forget_drafts(handle);
        if (const auto used = std::find(kept_.begin(), kept_.end(), request.continue_from);
            used != kept_.end())
            std::rotate(used, used + 1, kept_.end());
        const completion::RequestId id = queue_.submit(request);
        try {
            while (!done) {
                const bool going = queue_.step(&stop);
                take_events();
                if (shown.watch && !done) shown.watch(stop, view ? &*view : nullptr);
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
    if (!done->calls.empty()) answer.tool_calls = dump(text::calls_json(done->calls));
    written_ = std::move(done->written);
    save(answer);
    if (done->calls.empty() || !answer.content.empty() || !answer.reasoning.empty()) shown.out.write("\n");
    if (runs_calls_) done->calls.clear();  // the chat shows them
    note_calls(*done, io_);                // their results can only come from a transcript (/load)
    finish(*done);
    if (ended_in_reasoning(*done, !answer.reasoning.empty(), !answer.content.empty()))
        io_.note(
            "the answer did not begin: the model was still reasoning (/think off and --thinking-budget bound "
            "it)");
    return answer;
}

// The first prompt of a conversation may be on the disk.
void ChatModel::load_stored(const completion::Request &request) try {
    if (!kept_.empty() || !stored_.is_on()) return;
    const auto prompt = format_.make(request, static_cast<size_t>(engine_.executor().context())).tokens;
    system_tokens_ = format_.fixed_tokens(std::get<completion::Messages>(request.input), prompt);
    if (auto sequence = stored_.load(prompt)) keep(queue_.keep(std::move(*sequence)));
} catch (const decode::DecodeError &) {  // the queue reports it
}

// Of a chat that is not saved, only what is fixed before the first message: no word of the user's.
void ChatModel::save_stored(const decode::Sequence &sequence) {
    const std::span<const text::TokenId> tokens = sequence.tokens();
    if (is_saved_) stored_.save(tokens);
    // That of a saved chat is in its whole blocks, unless the answer was very short.
    const size_t saved = is_saved_ ? (tokens.size() - 1) / kernels::kBlockTokens * kernels::kBlockTokens : 0;
    if (saved < system_tokens_ && system_tokens_ <= tokens.size())
        stored_.save_to_the_token(tokens.first(system_tokens_));
}

void ChatModel::finish(const Done &done) {
    keep(done.kept);
    save_stored(*queue_.kept(done.kept));
    report_ = commands::report(options_.model.path, sampling_.seed, engine_, done);
    report_->stored = stored_.report();
    report_->sampling = file_sampling(settings_, engine_.file());
    if (done.usage.forgotten > 0)
        io_.note("the context was full: the oldest " + std::to_string(done.usage.forgotten) +
                 " tokens after the system prompt were forgotten");
    if (done.context_full) io_.note("the context is full: the answer ends here");
    write_stats(options_.stats, *report_, io_);
    ending_ = done.reason;
    show_answer_line(done, engine_.executor().context(), terminal_colors(options_.color), io_);
}

}  // namespace runnel::commands
