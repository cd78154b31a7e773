// One prompt in, one answer out; or several answers.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/commands/prompt_format.h"
#include "engine/commands/run/attention_picture.h"
#include "engine/commands/run/prompt_cache.h"
#include "engine/commands/run/run_output.h"
#include "engine/commands/run/run_request.h"
#include "engine/commands/run/run_trace.h"
#include "engine/commands/run/spec_trace.h"
#include "engine/commands/run/verify_drafts.h"
#include "engine/commands/stored_prompts.h"
#include "engine/completion/queue.h"
#include "engine/decode/error.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using decode::StopRequest;

// Number of concurrent sequences, which share the prompt.
int32_t sequences_of(const RunOptions &options) {
    return std::max({options.samples, options.beams, options.verify_drafts ? 2 : 1});
}

decode::EngineOptions engine_options_of(const RunOptions &options, Io &io, const StopRequest &stop) {
    if (options.samples > 1 && options.beams > 1)
        throw UsageError("--samples and --beams cannot be combined: choose one");
    const GenerationFlags &generation = options.generation;
    const bool logprobs = generation.logprobs >= 0 || generation.prompt_logprobs >= 0;
    if (logprobs && !options.json) throw UsageError("log-probabilities of tokens need --json");
    if (logprobs && options.beams > 1) throw UsageError("--beams gives no log-probabilities of tokens");
    if (options.chat.thinking_budget >= 0 && options.beams > 1)
        throw UsageError("--beams cannot be combined with --thinking-budget");
    decode::EngineOptions engine = engine_options(options.model, io, stop);
    engine.sequences = sequences_of(options);
    leave_room(engine, options.draft);
    if (options.beams > 1) engine.mtp = decode::Mtp::Off;
    return engine;
}

// Submits a request to a queue and passes its events to the output and the prompt cache.
class Run {
  public:
    Run(const RunOptions &options, Engine &engine, completion::CompletionQueue &queue, PromptCache &cache,
        RunOutput &output, Io &io)
        : options_(options), engine_(engine), queue_(queue), cache_(cache), output_(output), io_(io) {}

    void answer(completion::Request request, const StopRequest &stop) {
        base::TraceSpan submitting("submit");
        id_ = queue_.submit(request);
        submitting.end();
        request.drafts = request.log_drafts = request.keep = false;
        if (options_.verify_drafts) queue_.submit(request);
        while (queue_.unfinished() > 0) {
            base::TraceSpan span("step");
            const bool going = queue_.step(&stop);
            span.end();
            take_events();
            if (going) continue;
            queue_.end_all(finish_reason(stop));
            take_events();
        }
    }
    // The answer without drafts (--spec-verify).
    const completion::Done &plain() const { return plain_; }

  private:
    void take_events() {
        const base::TraceSpan span("write");
        for (const completion::Event &event : queue_.events())
            std::visit([&](const auto &e) { e.id == id_ ? take(e) : take_plain(e); }, event);
    }
    void take(const completion::Prefill &prefill) {
        if (prefill.left_out > 0 && !std::exchange(noted_, true))
            io_.note("the prompt is longer than the context of " +
                     std::to_string(engine_.executor().context()) +
                     " tokens: " + std::to_string(prefill.left_out) + " of its tokens are left out");
        if (prefill.done == prefill.all)
            base::Trace::mark("prompt computed",
                              {{"tokens", prefill.all}, {"from_cache", prefill.from_cache}});
        if (prefill.done == prefill.all) cache_.keep(queue_.sequence(id_), static_cast<size_t>(prefill.all));
    }
    void take(const completion::Piece &piece) {
        output_.add(piece);
        if (!std::exchange(answering_, true)) base::Trace::mark("first text");
    }
    void take(const completion::Done &done) {
        cache_.keep(queue_.kept(done.kept), done.usage.prompt_tokens);
        output_.add(done);
    }
    void take_plain(const completion::Done &done) {
        expect_answer(done);
        plain_ = done;
    }
    template <class Other>
    void take_plain(const Other &) {}

    const RunOptions &options_;
    Engine &engine_;
    completion::CompletionQueue &queue_;
    PromptCache &cache_;
    RunOutput &output_;
    Io &io_;
    completion::RequestId id_ = 0;
    completion::Done plain_;
    bool noted_ = false, answering_ = false;
};

}  // namespace

int run(const RunOptions &options, Io &io) {
    StopRequest stop;
    const InterruptScope interrupts(stop);
    std::optional<decode::DeadlineTimer> deadline;
    if (options.generation.deadline)
        deadline.emplace(stop, std::chrono::duration<double>(*options.generation.deadline));

    sampling_options(options.generation);  // checks the options before the model is loaded
    check_draft_flags(options);
    const decode::EngineOptions engine_flags = engine_options_of(options, io, stop);
    note_inputs({options.draft.model, options.file, options.system_file, options.chat.file,
                 options.chat.tools, options.generation.constraint.grammar,
                 options.generation.constraint.schema});
    check_spec_trace(options, io);
    check_attention_map(options, io);
    check_stats_file(options.stats, io,
                     {options.prompt_cache, options.trace, options.spec_trace, options.attention_map});
    if (options.prompt_cache) gguf::refuse_if_read(*options.prompt_cache);
    std::optional<base::Trace> trace;
    if (options.trace) {
        check_trace_file(*options.trace, options.prompt_cache, io);
        trace.emplace();
    }
    base::TraceSpan loading("load model");
    Engine engine(engine_flags);
    loading.end();
    for (const std::string &note : engine.notes()) io.note(note);
    std::optional<int32_t> layer;  // for the attention map
    if (options.attention_map) layer = attention_layer(options, engine.model().program);
    if (options.verify_drafts) expect_room_for_two(engine.executor());
    const auto drafts = drafting(options.draft, options.model, engine, options.samples, io, stop);
    base::TraceSpan reading("read prompt");
    const std::string text = gather_prompt(options, io, stop);
    reading.end();
    const completion::PromptFormat format = prompt_format(engine, options.chat);
    expect_template(format, options.chat, options.raw);
    note_unused(options.chat, format, io);
    completion::Request request = request_of(options, text, engine.file(), format, stop, io);
    PromptCache cache(options.prompt_cache, options.model, engine, io);
    completion::CompletionQueue queue(
        engine, format, {.parallel = sequences_of(options), .drafts = speculators(drafts.get())});
    RunOutput output(options, format, text, io);
    StoredPrompts stored(options.store, options.model, engine);
    std::vector<text::TokenId> prompt;
    if (stored.is_on())
        prompt = format.make(request, static_cast<size_t>(engine.executor().context())).tokens;
    if (auto sequence = stored.load(prompt); sequence && request.beams == 1)
        request.continue_from = queue.keep(std::move(*sequence));
    Run run(options, engine, queue, cache, output, io);
    run.answer(request, stop);
    std::string drawn;
    if (layer) drawn = draw_attention(options, *layer, engine, format, request, stop, output, io);
    Report report = output.finish(engine, request.sampling.seed);
    if (!drawn.empty()) io.err.write(drawn);
    stored.save(prompt);  // the answer is written, whatever becomes of this
    report.stored = stored.report();
    report.sampling = file_sampling(options.generation, engine.file());
    if (report.stored && !report.stored->problem.empty())
        io.note("--prompt-cache auto: " + gguf::printable(report.stored->problem, 4096));
    else if (options.store.is_on && prompts_folder().empty())
        io.note("--prompt-cache auto: not used without a home directory or with RUNNEL_NO_HISTORY=1");
    write_stats(options.stats, report, io);
    if (trace) write_trace(*options.trace, *trace, engine, io);
    if (options.spec_trace)
        write_spec_trace(*options.spec_trace, measure::draft_timeline(output.first()), engine.tokenizer(),
                         io);
    if (options.verify_drafts) {
        const DraftComparison found =
            compare_answers(output.first(), run.plain(), stop.requested(), engine.tokenizer());
        if (!found.difference.empty())
            throw decode::DecodeError(decode::DecodeError::Kind::Failed,
                                      "--spec-verify: " + found.difference);
        io.note("--spec-verify: " + std::to_string(found.compared) + " tokens, no difference");
    }
    return output.interrupted() ? exit_code::kInterrupted : exit_code::kDone;
}

}  // namespace runnel::commands
