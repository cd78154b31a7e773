// `runnel batch`: reads many prompts as there is room for them, computes them together, and writes each
// answer when it is done.
#include <chrono>
#include <optional>

#include "engine/commands/batch/batch_run.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"

namespace runnel::commands {

int batch(const BatchOptions &options, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    std::optional<decode::DeadlineTimer> deadline;
    if (options.generation.deadline)
        deadline.emplace(stop, std::chrono::duration<double>(*options.generation.deadline));
    if (options.force && !options.resume) throw UsageError("--force needs --resume");
    BatchInput input(options, io);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    leave_room(engine_flags, options.draft);
    engine_flags.sequences = options.parallel;
    note_inputs({options.input, options.draft.model, options.system_file, options.chat.file,
                 options.chat.tools, options.generation.constraint.grammar,
                 options.generation.constraint.schema});
    check_stats_file(
        options.stats, io,
        {options.output, options.output ? std::optional(manifest_of(*options.output)) : std::nullopt});
    decode::Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    BatchOutput output(options.output, {.resume = options.resume,
                                        .force = options.force,
                                        .overwrite = io.overwrite,
                                        .ordered = !options.unordered});
    return BatchRun(options, engine, input, output, stop, io).loop();
}

}  // namespace runnel::commands
