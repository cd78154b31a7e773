#include "engine/commands/run/run_many.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "engine/commands/generation.h"
#include "engine/decode/answer_batch.h"
#include "engine/decode/beam_search.h"
#include "engine/decode/error.h"
#include "engine/text/utf8.h"

namespace runnel::commands {
namespace {

using Clock = std::chrono::steady_clock;
using decode::FinishReason;
using decode::Hypothesis;

struct Found {
    std::vector<Hypothesis> answers;
    decode::Timings timings;
    std::optional<decode::SpeculationCounts> speculation = {};
};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

FinishReason reason_of(const decode::StopRequest &stop) {
    return stop.reason() == decode::StopRequest::Reason::Deadline ? FinishReason::Length
                                                                  : FinishReason::Interrupt;
}

Hypothesis hypothesis(const decode::AnswerBatch::Finished &answer) {
    if (!answer.error.empty()) throw decode::DecodeError(decode::DecodeError::Kind::BadInput, answer.error);
    // The token that ended it counts, as in the sum.
    const size_t length = answer.tokens.size() + (answer.reason == FinishReason::Stop ? 1 : 0);
    return {answer.text, answer.tokens, answer.reason, answer.log_probability,
            length > 0 ? answer.log_probability / static_cast<double>(length) : 0};
}

Found draw(const RunOptions &options, const ManyAnswers &what) {
    const auto start = Clock::now();
    decode::MakeSpeculator speculators;
    if (what.drafts) speculators = [&what]() { return what.drafts->speculator(); };
    decode::AnswerBatch batch(what.engine.executor(), what.engine.vocabulary(), options.samples, speculators);
    batch.submit({.key = 0,
                  .prompt = {what.prompt.begin(), what.prompt.end()},
                  .sampler = what.engine.sampler(what.sampling),
                  .options = what.limits,
                  .samples = options.samples,
                  .scored = true});
    Found found;
    decode::Timings &timings = found.timings;
    while (batch.unfinished() > 0 && batch.step(&what.stop)) {
        if (batch.counts().started == 0 || timings.prefill_seconds > 0) continue;
        timings.prefill_tokens = batch.schedule().tokens;
        timings.prefill_seconds = timings.first_token_seconds = seconds_since(start);
    }
    batch.end_all(reason_of(what.stop));
    auto finished = batch.take_finished();
    std::sort(finished.begin(), finished.end(),
              [](const auto &a, const auto &b) { return a.sample < b.sample; });
    for (const auto &answer : finished) found.answers.push_back(hypothesis(answer));
    timings.decode_steps = std::max<int64_t>(0, batch.counts().sampled_tokens - options.samples);
    timings.decode_seconds = seconds_since(start) - timings.prefill_seconds;
    if (what.drafts) found.speculation = batch.speculation();
    return found;
}

Found search(const RunOptions &options, const ManyAnswers &what) {
    const auto start = Clock::now();
    decode::BeamSearch beams(what.engine.executor(), what.engine.vocabulary(),
                             {.beams = options.beams,
                              .limits = what.limits,
                              .logit_bias = what.engine.sampler(what.sampling).options().logit_bias},
                             what.prompt);
    Found found;
    decode::Timings &timings = found.timings;
    while (beams.step(&what.stop)) {
        if (beams.tokens() < static_cast<int64_t>(what.prompt.size()) || timings.prefill_seconds > 0)
            continue;
        timings.prefill_tokens = beams.tokens();
        timings.prefill_seconds = timings.first_token_seconds = seconds_since(start);
    }
    found.answers = beams.results(reason_of(what.stop));
    timings.decode_steps = beams.tokens() - timings.prefill_tokens;
    timings.decode_seconds = seconds_since(start) - timings.prefill_seconds;
    return found;
}

Json json_of(const Hypothesis &answer) {
    return {{"text", answer.text},
            {"tokens", answer.tokens},
            {"completion_tokens", answer.tokens.size()},
            {"finish_reason", name(answer.reason)},
            {"logprob", answer.log_probability},
            {"score", answer.score}};
}

Json result_json(const RunOptions &options, const ManyAnswers &what, const Found &found,
                 const Report &report) {
    const Hypothesis &first = found.answers.front();
    Json list = Json::array();
    size_t best = 0;
    for (size_t i = 0; i < found.answers.size(); ++i) {
        if (found.answers[i].score > found.answers[best].score) best = i;
        list.push_back(json_of(found.answers[i]));
    }
    Json json = {{"text", (options.echo ? what.text : "") + first.text},
                 {"tokens", first.tokens},
                 {"prompt_tokens", what.prompt.size()},
                 {"completion_tokens", first.tokens.size()},
                 {"finish_reason", name(first.reason)},
                 {"timings", timings_json(report)},
                 {"best", best},
                 {options.beams > 1 ? "beams" : "samples", std::move(list)}};
    if (report.speculation) json["speculation"] = speculation_json(*report.speculation);
    return json;
}

void show(const RunOptions &options, const ManyAnswers &what, const Found &found, Io &io) {
    std::string text;
    const size_t count = options.beams > 1 ? 1 : found.answers.size();
    for (size_t i = 0; i < count; ++i)
        text += (i > 0 ? "\n---\n" : "") + (options.echo ? what.text : "") + found.answers[i].text;
    io.out.write(io.out.is_terminal() ? text::printable_for_terminal(text) + "\n" : text);
}

}  // namespace

int run_many(const RunOptions &options, const ManyAnswers &what, Io &io) {
    Found found = options.beams > 1 ? search(options, what) : draw(options, what);
    if (found.answers.empty()) found.answers.emplace_back();
    found.timings.prompt_tokens = static_cast<int64_t>(what.prompt.size());
    size_t tokens = 0;
    bool interrupted = false;
    for (const Hypothesis &answer : found.answers) {
        tokens += answer.tokens.size();
        interrupted = interrupted || answer.reason == FinishReason::Interrupt;
    }
    const Report report{options.model.path,
                        what.sampling.seed,
                        what.engine.load_seconds(),
                        found.timings,
                        tokens,
                        std::string(name(found.answers.front().reason)),
                        what.engine.placement(),
                        found.speculation};
    if (options.json)
        io.out.write(dump(result_json(options, what, found, report)));
    else
        show(options, what, found, io);
    write_stats(options.stats, report, io);
    return interrupted ? exit_code::kInterrupted : exit_code::kDone;
}

}  // namespace runnel::commands
