// `perplexity --hellaswag`, `--winogrande` and `--multiple-choice`: the share of tasks that the model solves.
#include <algorithm>

#include "engine/commands/commands.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/growing_line.h"
#include "engine/commands/json.h"
#include "engine/measure/choice_score.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using measure::ChoiceFormat, measure::ChoiceScore, measure::ChoiceTask, measure::TokenizedTask;

constexpr size_t kHellaSwagTasks = 400;  // llama-perplexity's default

ChoiceFormat format_of(const PerplexityOptions &options) {
    return options.hellaswag    ? ChoiceFormat::HellaSwag
           : options.winogrande ? ChoiceFormat::Winogrande
                                : ChoiceFormat::Questions;
}

std::string_view kind_of(ChoiceFormat format) {
    return format == ChoiceFormat::HellaSwag    ? "hellaswag"
           : format == ChoiceFormat::Winogrande ? "winogrande"
                                                : "multiple-choice";
}

void check_tasks(const PerplexityOptions &options) {
    if (options.hellaswag + options.winogrande + options.multiple_choice > 1)
        throw UsageError("--hellaswag, --winogrande and --multiple-choice exclude each other: choose one");
    if (options.file.empty()) throw UsageError("give the tasks with -f FILE");
    if (!options.base.empty() || !options.save_logits.empty() || options.stride > 0 || options.chunks != -1)
        throw UsageError(
            "--kl-base, --save-logits, --ppl-stride and --chunks are for a text: omit them for tasks");
}

// Sequences of the longest text's length: at least one for each answer of a task and one for what they share, and more
// if the cache stays small, because a step of several tasks reads the weights once for all.
size_t sequences_for(size_t longest, size_t most_answers) {
    constexpr size_t kCells = 8192, kMost = 64;
    return std::max(most_answers + 1, std::min(kCells / longest, kMost));
}

std::string summary(const ChoiceScore &score) {
    const auto [low, high] = score.interval();
    return format("tasks: %lld\nright: %lld\nby chance: %.2f%%\naccuracy: %.4f%% [%.4f%%, %.4f%%]\n",
                  static_cast<long long>(score.tasks), static_cast<long long>(score.right),
                  100 * score.chance, 100 * score.accuracy(), 100 * low, 100 * high);
}

Json summary_json(ChoiceFormat kind, const ChoiceScore &score) {
    const auto [low, high] = score.interval();
    return {{"kind", kind_of(kind)},  {"tasks", score.tasks},         {"right", score.right},
            {"chance", score.chance}, {"accuracy", score.accuracy()}, {"interval", {low, high}}};
}

}  // namespace

int choice_scores(const PerplexityOptions &options, Io &io) {
    check_tasks(options);
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    const ChoiceFormat kind = format_of(options);
    note_inputs({options.file});
    std::vector<ChoiceTask> tasks;
    try {
        tasks = measure::read_choice_tasks(kind, read_all(options.file, io.in, &stop));
    } catch (const decode::DecodeError &error) {
        throw InputError(gguf::printable(options.file, 4096) + ": " + error.what());
    }
    const auto wanted = options.tasks.value_or(kind == ChoiceFormat::HellaSwag ? kHellaSwagTasks : 0);
    tasks = measure::draw_tasks(kind, std::move(tasks), static_cast<size_t>(wanted));

    const gguf::File file = gguf::File::open(options.model.path);  // the tokenizer refers to it
    const text::Tokenizer tokenizer = text::Tokenizer::load(file);
    std::vector<TokenizedTask> tokenized;
    size_t longest = 0, most_answers = 0;
    for (const ChoiceTask &task : tasks) {
        tokenized.push_back(measure::tokenize(task, kind, tokenizer));
        longest = std::max(longest, tokenized.back().longest());
        most_answers = std::max(most_answers, task.answers.size());
    }
    decode::EngineOptions flags = engine_options(options.model, io, stop);
    if (flags.context > 0 && flags.context < static_cast<int64_t>(longest))
        throw UsageError("-c " + std::to_string(flags.context) + ": the longest text has " +
                         std::to_string(longest) + " tokens");
    const size_t sequences = sequences_for(longest, most_answers);
    flags.context = static_cast<int64_t>(longest);
    flags.sequences = static_cast<int32_t>(sequences);
    flags.weights.rearranged = false;  // no pass has few tokens
    decode::Engine engine(flags);

    measure::ChoiceRun run(engine.executor(), tokenized, sequences);
    GrowingLine progress(io);
    while (!run.is_finished()) {
        if (!run.step(&stop)) throw Interrupted{};
        progress.show(format("[%zu]%.2f%%,", run.done(), 100 * run.result().accuracy()));
    }
    progress.end();
    io.out.write(options.json ? dump(summary_json(kind, run.result())) : summary(run.result()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
