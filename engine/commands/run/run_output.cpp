#include "engine/commands/run/run_output.h"

#include <algorithm>

#include "engine/commands/run/spec_trace.h"
#include "engine/completion/logprobs.h"
#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

// A beam's score, or a sample's mean log-probability over its tokens, including the one that ended it.
double score(const completion::Done &done) {
    if (done.score != 0) return done.score;
    const size_t length = done.tokens.size() + (done.reason == completion::FinishReason::Stop ? 1 : 0);
    return length > 0 ? done.log_probability / static_cast<double>(length) : 0;
}

}  // namespace

RunOutput::RunOutput(const RunOptions &options, const completion::PromptFormat &format,
                     const std::string &prompt, Io &io)
    : options_(options),
      format_(format),
      prompt_(prompt),
      io_(io),
      many_(options.samples > 1 || options.beams > 1),
      streams_(!many_ && !options.json) {
    answer(0);
}

RunOutput::Answer &RunOutput::answer(int32_t sample) {
    while (answers_.size() <= static_cast<size_t>(sample)) {
        answers_.push_back({AnswerText(format_, options_.show_thinking.value_or(false))});
        if (options_.echo) show(answers_.back(), prompt_);
    }
    return answers_[static_cast<size_t>(sample)];
}

// A terminal gets printable text; a pipe gets the text unchanged.
void RunOutput::show(Answer &answer, const std::string &text) {
    if (streams_)
        io_.out.write(io_.out.is_terminal() ? text::printable_for_terminal(text) : text);
    else
        answer.shown += text;
}

void RunOutput::add(const completion::Piece &piece) {
    Answer &to = answer(piece.sample);
    show(to, to.text.add(piece));
}

void RunOutput::add(const completion::Done &done) {
    expect_answer(done);
    Answer &to = answer(done.sample);
    show(to, to.text.end());
    to.done = done;
}

bool RunOutput::interrupted() const {
    return std::ranges::any_of(answers_, [](const Answer &answer) {
        return answer.done.reason == completion::FinishReason::Interrupt;
    });
}

// Statistics of all answers together. They share the prompt; the decode time is that of the slowest answer.
Report RunOutput::summary(const decode::Engine &engine, uint64_t seed) const {
    Report all = report(options_.model.path, seed, engine, first());
    for (const Answer &answer : std::span(answers_).subspan(1)) {
        const completion::Timings &timings = answer.done.timings;
        all.tokens += answer.done.tokens.size();
        if (options_.beams > 1) continue;
        all.timings.decode_tokens += timings.decode_tokens;
        all.timings.decode_seconds = std::max(all.timings.decode_seconds, timings.decode_seconds);
        if (all.speculation && answer.done.speculation) all.speculation->add(*answer.done.speculation);
    }
    return all;
}

Json RunOutput::json(const Report &report, const text::Tokenizer &tokenizer) const {
    const Answer &one = answers_.front();
    const GenerationFlags &generation = options_.generation;
    const auto add_logprobs = [&](Json &to, const completion::Done &done) {
        if (generation.logprobs >= 0)
            to["logprobs"] = completion::chat_logprobs(completion::spell(done.logprobs, tokenizer));
    };
    Json json = {{"text", one.shown},
                 {"tokens", one.done.tokens},
                 {"prompt_tokens", report.prompt_tokens},
                 {"completion_tokens", one.done.tokens.size()},
                 {"finish_reason", finish_name(one.done)},
                 {"timings", timings_json(report)}};
    if (one.done.complete) json["complete"] = *one.done.complete;
    if (!many_) add_logprobs(json, one.done);
    if (generation.prompt_logprobs >= 0)
        json["prompt_logprobs"] =
            completion::prompt_logprobs(completion::spell(one.done.prompt_logprobs, tokenizer));
    if (!one.text.reasoning().empty()) json["reasoning"] = one.text.reasoning();
    if (!one.done.calls.empty()) json["tool_calls"] = text::calls_json(one.done.calls);
    if (many_) {
        Json list = Json::array();
        size_t best = 0;
        const size_t echoed = options_.echo ? prompt_.size() : 0;
        for (size_t i = 0; i < answers_.size(); ++i) {
            const completion::Done &done = answers_[i].done;
            if (score(done) > score(answers_[best].done)) best = i;
            list.push_back({{"text", answers_[i].shown.substr(echoed)},
                            {"tokens", done.tokens},
                            {"completion_tokens", done.tokens.size()},
                            {"finish_reason", finish_name(done)},
                            {"logprob", done.log_probability},
                            {"score", score(done)}});
            if (done.complete) list.back()["complete"] = *done.complete;
            add_logprobs(list.back(), done);
            if (!done.calls.empty()) list.back()["tool_calls"] = text::calls_json(done.calls);
        }
        json["best"] = best;
        json[options_.beams > 1 ? "beams" : "samples"] = std::move(list);
    }
    if (options_.spec_trace) json["spec_trace"] = spec_trace_json(measure::draft_timeline(one.done));
    for (const auto &[key, value] : more_.items()) json[key] = value;
    if (report.speculation) json["speculation"] = speculation_json(*report.speculation);
    return json;
}

void RunOutput::write_text() {
    std::string text;
    const size_t count = options_.beams > 1 ? 1 : answers_.size();
    for (size_t i = 0; i < count && many_; ++i) text += (i > 0 ? "\n---\n" : "") + answers_[i].shown;
    io_.out.write(io_.out.is_terminal() ? text::printable_for_terminal(text) + "\n" : text);
}

Report RunOutput::finish(decode::Engine &engine, uint64_t seed) {
    Report report = summary(engine, seed);
    if (options_.json)
        io_.out.write(dump(json(report, engine.tokenizer())));
    else
        write_text();
    for (const Answer &answer : answers_) {
        if (!options_.json)
            note_calls(answer.done, io_, " (--json: tool_calls)");
        else if (!answer.done.note.empty())
            io_.note(answer.done.note);
    }
    const std::string context = "the context of " + std::to_string(engine.executor().context()) + " tokens";
    if (const int64_t forgotten = first().usage.forgotten; forgotten > 0)
        io_.note(context + " was full: " + std::to_string(forgotten) + " tokens were dropped to make room");
    if (first().context_full) io_.note(context + " is full: the text ends here (-c gives a larger one)");
    if (const AnswerText &text = answers_.front().text;
        ended_in_reasoning(first(), !text.reasoning().empty(), text.began()))
        io_.note(
            "there is no answer: the model was still reasoning when it was stopped (-n, --think, "
            "--thinking-budget and -c set the limits)");
    return report;
}

}  // namespace runnel::commands
