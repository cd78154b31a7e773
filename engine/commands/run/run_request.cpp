#include "engine/commands/run/run_request.h"

#include <optional>
#include <utility>
#include <vector>

#include "engine/commands/generation.h"
#include "engine/commands/prompt_format.h"

namespace runnel::commands {
namespace {

constexpr double kPatience = 3;  // seconds

// Removes the last newline of a file, as llama.cpp does.
std::string without_last_newline(std::string text) {
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return text;
}

}  // namespace

std::string gather_prompt(const RunOptions &options, Io &io, const decode::StopRequest &stop) {
    std::optional<std::string> more;
    if (options.file) {
        more = without_last_newline(read_all(*options.file, io.in, &stop));
    } else if (!options.prompt || has_input(io.in)) {
        // Without this note, an inherited pipe that is never written to or closed looks like a hang.
        if (options.prompt && !input_ready(io.in, kPatience))
            io.note(
                "waiting for the rest of the prompt on standard input (if there is none, add </dev/null)");
        more = without_last_newline(read_all("-", io.in, &stop));
    }
    std::string text = options.prompt.value_or("");
    if (more && !more->empty()) text += (text.empty() ? "" : "\n\n") + *more;
    if (text.empty())
        throw InputError("the prompt is empty: give it as an argument, with -f FILE, or on standard input");
    return text;
}

namespace {

std::optional<std::string> suffix_of(const RunOptions &options, Io &io, const decode::StopRequest &stop) {
    if (!options.suffix || !options.suffix->starts_with('@')) return options.suffix;
    return read_all(options.suffix->substr(1), io.in, &stop);
}

}  // namespace

completion::Request request_of(const RunOptions &options, const std::string &text, const gguf::File &model,
                               const completion::PromptFormat &format, const decode::StopRequest &stop,
                               Io &io) {
    completion::Request request{
        .input = completion::RawText{text, suffix_of(options, io, stop)},
        .sampling = sampling_options(with_file_sampling(options.generation, model, io)),
        .limits = limits(options.generation),
        .overflow = options.overflow,
        .samples = options.samples,
        .beams = options.beams,
        .logprobs = options.samples > 1 || options.generation.logprobs >= 0,
        .top_logprobs = options.generation.logprobs,
        .prompt_logprobs = options.generation.prompt_logprobs};
    request.log_drafts = options.spec_trace.has_value();
    request.thinking_budget = options.chat.thinking_budget;
    // With -n 0, the prompt is computed only if the sequence is kept.
    request.keep = (options.prompt_cache.has_value() || request.limits.max_tokens == 0) && options.beams == 1;
    request.constraint = constraint_of(options.generation.constraint, io);
    request.json_style = json_style(options.generation.constraint);
    request.close = options.generation.constraint.close;
    const std::string system = system_prompt(options.system, options.system_file, io.in, &stop);
    if (options.raw && !system.empty())
        throw UsageError(std::string(options.suffix ? "--suffix" : "--raw") +
                         " cannot be combined with a system prompt");
    if (!options.raw && format.has_template()) {
        if (!format.note().empty()) io.note(format.note());
        std::vector<text::Message> turns;
        if (!system.empty()) turns.push_back({"system", system});
        turns.push_back({"user", text});
        request.input = completion::Messages{std::move(turns), tool_use(options.chat, format, io)};
    } else if (!system.empty()) {
        throw UsageError("the file has no chat template, so a system prompt cannot be used");
    }
    return request;
}

}  // namespace runnel::commands
