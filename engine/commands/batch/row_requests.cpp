#include "engine/commands/batch/row_requests.h"

#include <utility>

#include "engine/commands/generation.h"
#include "engine/commands/prompt_format.h"
#include "engine/grammar/tool_grammar.h"

namespace runnel::commands {
namespace {

constexpr size_t kMostProblems = 16;

}  // namespace

RowRequests::RowRequests(const BatchOptions &options, const completion::PromptFormat &format,
                         const decode::SamplingOptions &sampling, const decode::StopRequest &stop, Io &io)
    : options_(options),
      format_(format),
      sampling_(sampling),
      io_(io),
      system_(system_prompt(options.system, options.system_file, io.in, &stop)),
      limits_(limits(options.generation)),
      constraint_(constraint_of(options.generation.constraint, io)),
      tools_(tool_use(options.chat, format, io)) {}

completion::Request RowRequests::of(const Row &row) {
    const completion::Body &body = row.body;
    if (body.prompt && body.prompt->empty()) throw InputError("the prompt is empty");
    // Rows without a seed share the run's; the line number as the stream makes their draws differ.
    completion::Request request{.input = completion::RawText{body.prompt.value_or(""), body.suffix},
                                .sampling = sampling_,
                                .stream = body.seed ? 0 : static_cast<uint32_t>(row.identity.line),
                                .limits = limits_,
                                .constraint = constraint_,
                                .json_style = json_style(options_.generation.constraint),
                                .close = options_.generation.constraint.close,
                                .thinking_budget = options_.chat.thinking_budget,
                                .overflow = options_.overflow,
                                .logprobs = options_.generation.logprobs >= 0,
                                .top_logprobs = options_.generation.logprobs,
                                .prompt_logprobs = options_.generation.prompt_logprobs};
    body.apply(request);
    if (body.prompt && (body.suffix || row.raw || options_.raw || !format_.has_template())) {
        if (!row.raw && !system_.empty())
            throw UsageError(body.suffix ? "a system prompt cannot be used with a suffix"
                                         : "a system prompt needs a chat template");
        if (body.tools) throw InputError("tools need a chat template");
        return request;
    }
    std::vector<text::Message> messages = body.messages;
    if (body.prompt) messages.push_back({"user", *body.prompt});
    if (!system_.empty() && messages.front().role != "system")
        messages.insert(messages.begin(), {"system", system_});
    if (!std::exchange(noted_, true) && !format_.note().empty()) io_.note(format_.note());
    const auto tools = body.tool_use(tools_);
    if (body.tools && format_.tool_format() && problems_.size() < kMostProblems)
        note_problems(*tools, row.identity.line);
    request.input = completion::Messages{std::move(messages), tools};
    return request;
}

// Notes each problem once, and only the first kMostProblems, because most rows have the same tools.
void RowRequests::note_problems(const text::ToolUse &tools, int64_t line) {
    for (const std::string &problem : grammar::tool_problems(*format_.tool_format(), tools))
        if (problems_.size() < kMostProblems && problems_.insert(problem).second)
            io_.note("line " + std::to_string(line) + ": " + problem);
}

}  // namespace runnel::commands
