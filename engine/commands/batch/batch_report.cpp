#include "engine/commands/batch/batch_report.h"

#include <cstdio>
#include <string>

#include "engine/commands/generation.h"

namespace runnel::commands {
namespace {

Json stats(const BatchOptions &options, const BatchTotals &totals, decode::Engine &engine,
           const completion::CompletionQueue &queue) {
    const completion::CompletionQueue::Counts &counts = queue.counts();
    const decode::SchedulerCounts &schedule = queue.schedule();
    const double time = totals.seconds;
    Json json = {
        {"program", "runnel"},
        {"model", options.model.path},
        {"seed", totals.seed},
        {"rows", totals.rows},
        {"written", totals.written},
        {"written_before", totals.kept},
        {"errors", totals.errors},
        {"prompt_tokens", counts.prompt_tokens},
        {"reused_tokens", engine.executor().cache().statistics().reused_tokens - totals.stored.attached()},
        {"completion_tokens", counts.generated_tokens},
        {"forgotten_tokens", totals.forgotten},
        {"computed_tokens", schedule.tokens},
        {"steps", schedule.steps},
        {"sequences_per_step",
         schedule.steps > 0 ? double(schedule.sequences) / double(schedule.steps) : 0.0},
        {"preemptions", schedule.preemptions},
        {"load_ms", engine.load_seconds() * 1e3},
        {"seconds", time},
        {"completion_tps", time > 0 ? double(counts.generated_tokens) / time : 0.0}};
    if (totals.drafts) json["speculation"] = speculation_json(queue.speculation());
    if (!totals.paging.is_null()) json["paging"] = totals.paging;
    if (const auto stored = totals.stored.report()) json["stored_prompts"] = stored_json(*stored);
    const completion::FileSampling sampling = file_sampling(options.generation, engine.file());
    if (sampling.any()) json["file_sampling"] = file_sampling_json(sampling);
    return json;
}

std::string stats_text(const Json &s) {
    char text[640];
    std::snprintf(
        text, sizeof text,
        "rows     %9lld  (%lld written now, %lld before, %lld with errors)\n"
        "prompts  %9lld  tokens (%lld from the cache)\n"
        "answers  %9lld  tokens, %.1f tokens/s\n"
        "computed %9lld  tokens in %lld steps of %.1f sequences, %lld preemptions\n"
        "time     %9.1f  s, and %.0f ms to load; seed %llu\n",
        s["rows"].get<long long>(), s["written"].get<long long>(), s["written_before"].get<long long>(),
        s["errors"].get<long long>(), s["prompt_tokens"].get<long long>(),
        s["reused_tokens"].get<long long>(), s["completion_tokens"].get<long long>(),
        s["completion_tps"].get<double>(), s["computed_tokens"].get<long long>(), s["steps"].get<long long>(),
        s["sequences_per_step"].get<double>(), s["preemptions"].get<long long>(), s["seconds"].get<double>(),
        s["load_ms"].get<double>(), s["seed"].get<unsigned long long>());
    return text;
}

}  // namespace

void report_batch(const BatchOptions &options, const BatchTotals &totals, decode::Engine &engine,
                  const completion::CompletionQueue &queue, Io &io) {
    const Json numbers = stats(options, totals, engine, queue);
    const std::string drafts = totals.drafts ? speculation_text(queue.speculation()) : std::string();
    const auto stored = totals.stored.report();
    const std::string sampling = file_sampling_text(file_sampling(options.generation, engine.file()));
    write_stats(options.stats,
                stats_text(numbers) + sampling + drafts + (stored ? stored_text(*stored) : std::string()),
                numbers, io);
    if (totals.errors > 0)
        io.note(std::to_string(totals.errors) +
                (totals.errors == 1 ? " row has an error" : " rows have errors"));
    if (totals.forgotten > 0)
        io.note("texts outgrew the context: " + std::to_string(totals.forgotten) +
                " tokens were left out or forgotten (\"forgotten_tokens\" of their rows)");
    if (totals.odd_calls > 0)
        io.note("in " + std::to_string(totals.odd_calls) +
                " answers, text that looks like a tool call is not valid as one and stays in the text");
}

}  // namespace runnel::commands
