#include "engine/commands/prompt_format.h"

#include <stdexcept>
#include <utility>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/grammar/tool_grammar.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// A value that is JSON (true, 12, null, "text", [1]) is parsed; everything else is text.
void add_variable(Json &variables, const std::string &text) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos)
        throw UsageError("--template-var " + gguf::quoted(text) +
                         ": write NAME=VALUE, as in enable_thinking=false");
    Json value = text.substr(equals + 1);
    if (value == "True" || value == "False") {
        value = value == "True";
    } else {
        try {
            value = parse_json(value.get_ref<const std::string &>());
        } catch (const JsonError &error) {
            if (error.kind != JsonError::Kind::Syntax)
                throw UsageError("--template-var " + gguf::quoted(text.substr(0, equals)) + ": " +
                                 error.what());
        }
    }
    variables[text.substr(0, equals)] = std::move(value);
}

// Reads a list of definitions, or {"tools": [...]}, the shape of requests to other programs.
Json read_tools(const std::string &path) {
    const std::string name = gguf::printable(path, 4096);
    try {
        Json tools = parse_json(read_all(path, -1));
        if (tools.is_object() && tools.contains("tools")) tools = Json(std::move(tools["tools"]));
        if (tools.is_array()) return tools;
    } catch (const JsonError &error) {
        throw InputError(name + " is not JSON: " + error.what());
    }
    throw InputError(name + " has no tools: expected a JSON list of definitions");
}

// The definitions of --tools, followed by `more` (a list or null); null if neither is given.
Json tool_definitions(const TemplateFlags &flags, const Json &more) {
    if (!flags.tools) return more;
    Json all = read_tools(*flags.tools);
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

text::ChatPromptOptions prompt_options(const TemplateFlags &flags, const Json &more) {
    if (flags.file && flags.name)
        throw UsageError("choose the template with --chat-template or --template-name, not both");
    text::ChatPromptOptions options;
    if (flags.file) options.source = read_all(*flags.file, -1);
    options.name = flags.name;
    options.thinking = flags.thinking;
    if (Json tools = tool_definitions(flags, more); !tools.is_null())
        options.tools = text::read_tools(std::move(tools)).definitions;
    options.variables = Json::object();
    for (const std::string &variable : flags.variables) add_variable(options.variables, variable);
    return options;
}

}  // namespace

completion::PromptFormat prompt_format(const decode::Engine &engine, const TemplateFlags &flags,
                                       const Json &more) {
    try {
        return completion::PromptFormat(engine.file(), engine.tokenizer(), prompt_options(flags, more));
    } catch (const text::jinja::TemplateError &error) {
        throw InputError((flags.file ? *flags.file : "the chat template") + ": " + error.what());
    } catch (const std::invalid_argument &error) {
        throw UsageError(std::string("--think: ") + error.what());
    } catch (const std::out_of_range &error) {
        throw UsageError(error.what());
    }
}

std::shared_ptr<const text::ToolUse> tool_use(const TemplateFlags &flags,
                                              const completion::PromptFormat &format, Io &io,
                                              const Json &more) {
    Json definitions = tool_definitions(flags, more);
    if (definitions.is_null()) {
        if (flags.tool_choice || flags.one_call)
            throw UsageError("--tool-choice and --no-parallel-tool-calls need --tools");
        return nullptr;
    }
    std::vector<std::string> notes;
    auto use = std::make_shared<text::ToolUse>(text::read_tools(std::move(definitions), &notes));
    use->parallel = !flags.one_call;
    try {
        if (flags.tool_choice) use->choose(*flags.tool_choice);
    } catch (const std::invalid_argument &error) {
        throw UsageError("--tool-choice " + gguf::quoted(*flags.tool_choice) + ": " + error.what());
    }
    if (!format.tool_format())
        notes.push_back(
            "the chat template has no tool-call format that runnel knows: calls are part of the answer's "
            "text");
    if (format.tool_format())
        for (std::string &problem : grammar::tool_problems(*format.tool_format(), *use))
            notes.push_back(std::move(problem));
    for (const std::string &note : notes) io.note(note);
    return use;
}

void expect_template(const completion::PromptFormat &format, const TemplateFlags &flags, bool raw) {
    if (!flags.given()) return;
    if (raw) throw UsageError("--raw completes text without a chat template");
    if (!format.has_template())
        throw UsageError("the file has no chat template; --chat-template FILE gives one");
}

void note_unused(const TemplateFlags &flags, const completion::PromptFormat &format, Io &io) {
    if (flags.thinking_budget >= 0 && format.reasoning().kind == text::ReasoningStyle::Kind::None)
        io.note("the model does not reason: --thinking-budget has no effect");
}

std::string system_prompt(const std::optional<std::string> &text, const std::optional<std::string> &file,
                          int in, const decode::StopRequest *stop) {
    if (text && file) throw UsageError("give the system prompt with --system or --system-file, not both");
    std::string prompt = text ? *text : file ? read_all(*file, in, stop) : std::string();
    if (file && prompt.ends_with('\n')) prompt.pop_back();
    return prompt;
}

std::string AnswerText::add(const completion::Piece &piece) {
    const bool is_reasoning = piece.channel == completion::Channel::Reasoning;
    if (piece.text.empty()) return {};
    if (is_reasoning) reasoning_ += piece.text;
    began_ |= !is_reasoning;
    std::string text;
    if (is_reasoning != std::exchange(inside_, is_reasoning) && show_thinking_)
        text = inside_ ? format_->opening_mark() : format_->closing_mark();
    return !is_reasoning || show_thinking_ ? text + piece.text : text;
}

}  // namespace runnel::commands
