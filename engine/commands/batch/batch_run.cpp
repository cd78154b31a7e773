#include "engine/commands/batch/batch_run.h"

#include <optional>
#include <utility>
#include <variant>

#include "engine/commands/batch/batch_report.h"
#include "engine/commands/batch/batch_settings.h"
#include "engine/commands/generation.h"
#include "engine/decode/error.h"

namespace runnel::commands {

using decode::Engine;
using decode::StopRequest;

namespace {

// Finished lines that may wait for an earlier one, per sequence in flight; beyond that no rows are read.
constexpr size_t kHeldPerSequence = 64;

}  // namespace

BatchRun::BatchRun(const BatchOptions &options, Engine &engine, BatchInput &input, BatchOutput &output,
                   StopRequest &stop, Io &io)
    : options_(options),
      engine_(engine),
      io_(io),
      stop_(stop),
      input_(input),
      output_(output),
      progress_(io),
      format_(prompt_format(engine, options.chat)),
      sampling_(batch_sampling(options, engine.file(), output, io)),
      requests_(options, format_, sampling_, stop, io),
      drafts_(drafting(options.draft, options.model, engine, options.parallel, io, stop)),
      queue_(engine, format_, {.parallel = options.parallel, .drafts = speculators(drafts_.get())}),
      shared_(options, engine, format_),
      errors_(output.before().failed()) {
    if (options.explain) {
        explain_.emplace(engine, options.parallel);
        queue_.after_pass([this] { look(); });
    }
    expect_template(format_, options.chat, options.raw);
    note_unused(options.chat, format_, io);
    output_.begin(batch_settings(options, engine, sampling_, requests_.system(), requests_.constraint()));
}

int BatchRun::loop() {
    try {
        answer_all();
    } catch (const kernels::BackendError &) {  // a lost GPU: what is written stays
        output_.close();
        note_stop();
        throw;
    } catch (const ClosedPipe &) {
        throw OutputError(output_.name() + " was closed after " + std::to_string(output_.written()) +
                          " rows: the other answers are not written");
    }
    output_.close();
    const bool finished = ended_ && queue_.unfinished() == 0;
    report_batch(options_,
                 {sampling_.seed, input_.rows(), output_.written(), input_.kept(), errors_, forgotten_,
                  odd_calls_, base::seconds_since(started_), drafts_ != nullptr, shared_.stored(),
                  explain_ ? explain_->json(queue_) : Json()},
                 engine_, queue_, io_);
    if (explain_) io_.progress(explain_->text(queue_));
    expect_every_row(finished);
    if (finished) output_.complete(input_.end());
    if (!finished) {
        note_stop();
        return exit_code::kInterrupted;
    }
    if (model_failed_) return exit_code::kFailed;
    return errors_ > 0 ? exit_code::kInput : exit_code::kDone;
}

void BatchRun::answer_all() {
    while (!stop_.requested()) {
        show_progress();
        read_rows();
        if (queue_.unfinished() == 0 && ended_) break;
        if (queue_.unfinished() == 0) continue;
        const bool going = queue_.step(&stop_);
        for (const completion::Event &event : queue_.events()) {
            if (const auto *piece = std::get_if<completion::Piece>(&event)) {
                Waiting &waiting = waiting_.at(piece->id);
                waiting.answer += waiting.text.add(*piece);
            } else if (const auto *done = std::get_if<completion::Done>(&event)) {
                finish(*done);
            }
        }
        if (!going) break;
    }
}

// Throws unless every row that was taken has its line in the output or, after a stop, still waits for it.
void BatchRun::expect_every_row(bool finished) const {
    const uint64_t open = finished ? 0 : waiting_.size() + output_.held();
    if (output_.missing() != open)
        throw OutputError(std::to_string(output_.missing() - open) + " of " + std::to_string(input_.rows()) +
                          " rows were read and not written: this is a bug in runnel, the output is not "
                          "complete");
}

// Reads enough rows to keep the queue supplied; waits for input only if there is nothing else to do.
void BatchRun::read_rows() {
    const size_t parallel = static_cast<size_t>(options_.parallel);
    while (!ended_ && !stop_.requested() && queue_.unfinished() < 2 * parallel &&
           output_.held() < kHeldPerSequence * parallel) {
        constexpr int kPatience = 100;  // milliseconds between checks for a stop request
        BatchInput::Next next = input_.next(queue_.unfinished() == 0 ? kPatience : 0, output_);
        using State = BatchInput::Next::State;
        ended_ = next.state == State::End;
        if (next.state == State::Row) take(next);
        if (next.state == State::NotYet && queue_.unfinished() > 0) return;
    }
}

void BatchRun::take(const BatchInput::Next &next) {
    const Row &row = next.row;
    const uint64_t place = output_.reserve(row.identity, next.content);
    std::string error = row.error;
    if (error.empty()) try {
            const completion::Request request = requests_.of(row);
            shared_.add(request);
            const completion::RequestId id = queue_.submit(request);
            waiting_.emplace(
                id, Waiting{row.identity, place, next.bytes,
                            AnswerText(format_, options_.show_thinking.value_or(false)), request.logprobs,
                            request.prompt_logprobs >= 0, request.limits.max_tokens});
            return;
        } catch (const std::runtime_error &problem) {
            error = problem.what();
        }
    fail(row.identity, place, next.bytes, error);
}

void BatchRun::finish(const completion::Done &done) {
    const auto found = waiting_.find(done.id);
    Waiting waiting = std::move(found->second);
    waiting_.erase(found);
    if (!done.error.empty()) {
        model_failed_ |= done.kind != decode::DecodeError::Kind::BadInput;
        return fail(waiting.row, waiting.place, waiting.bytes, done.error);
    }
    if (explain_) explain_->add(done.usage, waiting.max_tokens);
    shared_.save();
    forgotten_ += done.usage.left_out + done.usage.forgotten;
    completion::Reply reply{.text = waiting.answer + waiting.text.end(),
                            .reasoning = waiting.text.reasoning(),
                            .reason = done.reason,
                            .usage = done.usage,
                            .complete = done.complete,
                            .calls = done.calls};
    if (waiting.logprobs) reply.logprobs = completion::spell(done.logprobs, engine_.tokenizer());
    if (waiting.prompt_logprobs)
        reply.prompt_logprobs = completion::spell(done.prompt_logprobs, engine_.tokenizer());
    if (options_.timings) reply.timings = done.timings;
    odd_calls_ += !done.note.empty();
    output_.put(waiting.place, answer_line(waiting.row, reply, options_.model.path));
    answered_bytes_ += waiting.bytes;
}

void BatchRun::fail(const RowIdentity &row, uint64_t place, uint64_t bytes, const std::string &error) {
    ++errors_;
    output_.put(place, error_line(row, error));
    answered_bytes_ += bytes;
}

// For --explain: the cache as the pass left it.
void BatchRun::look() {
    std::vector<const cache::SequenceCache *> caches;
    for (const auto &[id, waiting] : waiting_)
        if (const decode::Sequence *sequence = queue_.sequence(id)) caches.push_back(&sequence->cache());
    explain_->look(caches);
}

void BatchRun::note_stop() {
    io_.note("stopped after " + std::to_string(output_.written() + input_.kept()) + " rows" +
             (options_.output ? ": continue with --resume" : ""));
}

void BatchRun::show_progress() {
    if (!progress_.due()) return;
    const auto share = [&](uint64_t bytes) {
        return input_.size() > 0 ? double(bytes) / double(input_.size()) : -1;
    };
    progress_.update({output_.written() + input_.kept(), errors_, queue_.counts().sampled_tokens,
                      share(answered_bytes_ + input_.passed()), share(input_.kept_bytes()),
                      base::seconds_since(started_)});
}

}  // namespace runnel::commands
