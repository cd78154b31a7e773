#include "engine/text/chat_prompt.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/text/tool_calls/detect.h"

namespace runnel::text {
namespace {

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

std::string text_of(const std::vector<Segment> &segments) {
    std::string text;
    for (const Segment &segment : segments) text += segment.text;
    return text;
}

jinja::Value content(const std::string &text) {
    return jinja::Value::string(jinja::MarkedText(text, jinja::Origin::Content));
}

// The names used in a template's code, without attributes, text and string literals.
std::set<std::string, std::less<>> names_in(std::string_view source) {
    std::set<std::string, std::less<>> names;
    const auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    for (size_t i = 0; i + 1 < source.size(); ++i) {
        if (source[i] != '{' || (source[i + 1] != '{' && source[i + 1] != '%')) continue;
        const char close = source[i + 1] == '{' ? '}' : '%';
        for (i += 2; i + 1 < source.size() && !(source[i] == close && source[i + 1] == '}'); ++i) {
            if (source[i] == '\'' || source[i] == '"') {
                const char quote = source[i++];
                while (i < source.size() && source[i] != quote) i += source[i] == '\\' ? 2 : 1;
            } else if (in_name(source[i])) {
                const size_t begin = i;
                while (i + 1 < source.size() && in_name(source[i + 1])) ++i;
                if (source[begin - 1] != '.') names.emplace(source.substr(begin, i + 1 - begin));
            }
        }
    }
    return names;
}

// Puts the system message in front of the first user message.
std::vector<Message> with_system_merged(std::span<const Message> messages) {
    std::vector<Message> merged(messages.begin() + 1, messages.end());
    const auto first =
        std::find_if(merged.begin(), merged.end(), [](const Message &m) { return m.role == "user"; });
    if (first == merged.end())
        merged.insert(merged.begin(), {"user", messages[0].content});
    else
        first->content = messages[0].content + "\n\n" + first->content;
    return merged;
}

}  // namespace

TemplateTokens TemplateTokens::of(const Tokenizer &tokenizer) {
    const auto text = [&](std::optional<TokenId> id) { return std::string(id ? tokenizer.piece(*id) : ""); };
    return {text(tokenizer.bos()), text(tokenizer.eos())};
}

std::vector<NamedTemplate> chat_templates(const gguf::File &file) {
    std::vector<NamedTemplate> templates;
    for (const auto &[key, value] : file.metadata()) {
        const auto source = key.starts_with(kTemplateKey) ? value.as_string() : std::nullopt;
        if (!source || source->empty()) continue;
        if (key == kTemplateKey)
            templates.insert(templates.begin(), {"default", *source});
        else if (key[kTemplateKey.size()] == '.')
            templates.push_back({std::string(key.substr(kTemplateKey.size() + 1)), *source});
    }
    return templates;
}

const NamedTemplate *choose_template(std::span<const NamedTemplate> templates, std::string_view name,
                                     bool has_tools) {
    const auto find = [&](std::string_view wanted) -> const NamedTemplate * {
        for (const NamedTemplate &entry : templates)
            if (entry.name == wanted) return &entry;
        return nullptr;
    };
    if (!name.empty()) return find(name);
    const NamedTemplate *chosen = has_tools ? find("tool_use") : nullptr;
    if (!chosen) chosen = find("default");
    return chosen || templates.empty() ? chosen : &templates.front();
}

ChatPrompt::ChatPrompt(const gguf::File &file, const Tokenizer &tokenizer, ChatPromptOptions options)
    : tokenizer_(&tokenizer), tokens_(TemplateTokens::of(tokenizer)), options_(std::move(options)) {
    const bool has_tools = options_.tools.is_array() && !options_.tools.empty();
    tools_ = has_tools ? jinja::from_json(options_.tools) : jinja::Value::none();
    const std::vector<NamedTemplate> templates = chat_templates(file);
    const NamedTemplate *chosen = choose_template(templates, options_.name.value_or(""), has_tools);
    if (options_.name && !chosen)
        throw std::out_of_range("the file has no chat template '" + *options_.name + "'");
    std::string_view source = options_.source ? std::string_view(*options_.source)
                              : chosen        ? chosen->source
                                              : std::string_view();
    if (source == kRwkvWorldName) source = kRwkvWorld;
    has_template_ = options_.source || chosen;
    reasoning_ = find_reasoning_style(source, tokenizer);
    if (options_.source)
        template_ = jinja::Template::parse(source);
    else if (!has_template_ || !try_template(source))
        fall_back();
    set_thinking(options_.thinking);
    if (template_->source().find("add_generation_prompt") == std::string::npos)
        generation_prompt_ = text_before_answers();
    find_tool_format();
}

// What the template writes between a question and its answer, or nothing if that is only white space.
std::string ChatPrompt::text_before_answers() const {
    const std::vector<Message> turns = {{"user", "QUESTION"}, {"assistant", "ANSWER"}};
    try {
        const std::string question =
            text_of(interpret(std::span(turns).first(1), false, jinja::Value::none()));
        const std::string both = text_of(interpret(turns, false, jinja::Value::none()));
        const size_t answer = both.starts_with(question) ? both.find("ANSWER", question.size()) : both.npos;
        if (answer == both.npos) return "";
        // A blank in front of a word belongs to the word's token.
        std::string between = both.substr(question.size(), answer - question.size());
        while (between.ends_with(' ')) between.pop_back();
        return between.find_first_not_of(" \n") == between.npos ? "" : between;
    } catch (const jinja::TemplateError &) {
        return "";
    }
}

void ChatPrompt::find_tool_format() {
    const std::string &source = template_->source();
    if (source.find("tool") == source.npos) return;
    std::vector<std::string> ends;
    for (TokenId id = 0; id < tokenizer_->size(); ++id)
        if (tokenizer_->is_end_of_generation(id)) ends.emplace_back(tokenizer_->piece(id));
    const Json tools = probe_tools();
    const auto rendered = [&](bool with_call) -> std::optional<std::string> {
        std::vector<Message> messages = {{"user", "?"}};
        if (with_call) messages.push_back({.role = "assistant", .content = "", .tool_calls = probe_calls()});
        try {
            std::string text;
            for (const Segment &segment : render(messages, !with_call, &tools)) text += segment.text;
            return text;
        } catch (const jinja::TemplateError &) {
            return std::nullopt;
        }
    };
    const auto before = rendered(false);
    // Try arguments as an object before arguments as text: a template that writes JSON would quote text a second time.
    for (const int way : {0, 1, 2, 3}) {
        arguments_as_text_ = way & 1;
        calls_without_content_ = way & 2;
        const auto after = rendered(true);
        if (before && after) tool_format_ = format_of_rendering(*before, *after, ends);
        if (tool_format_) return;
    }
    arguments_as_text_ = calls_without_content_ = false;
    tool_format_ = format_of_source(source);
    if (tool_format_ || source.find("tools") == source.npos) return;
    for (const ToolFormat &format : tool_formats())
        if (!format.bare && format.text_name.empty() && tokenizer_->find(format.triggers().front())) {
            tool_format_ = &format;
            return;
        }
}

void ChatPrompt::set_thinking(Thinking thinking) {
    auto variables = nlohmann::ordered_json::object();
    const std::string &source = template_->source();
    const auto names = names_in(source);
    const auto has = [&](const char *name) { return thinking != Thinking::Default && names.contains(name); };
    const bool off = thinking == Thinking::Off, has_effort = has("reasoning_effort");
    const bool has_none = source.find("'none'") != source.npos || source.find("\"none\"") != source.npos;
    for (const char *name : {"enable_thinking", "thinking"})
        if (has(name)) variables[name] = !off;
    if (off && has("thinking_budget")) variables["thinking_budget"] = 0;
    if (off && has_effort && has_none) variables["reasoning_effort"] = "none";
    if (off && variables.empty())
        throw std::invalid_argument(std::string("the chat template cannot turn reasoning off") +
                                    (has_effort ? " (the lowest level is low)" : ""));
    if (thinking == Thinking::On && variables.empty() && reasoning_.kind == ReasoningStyle::Kind::None)
        throw std::invalid_argument("the chat template has no reasoning");
    if (thinking == Thinking::Low || thinking == Thinking::Medium || thinking == Thinking::High) {
        if (!has_effort)
            throw std::invalid_argument("the chat template has no levels of reasoning, only on" +
                                        std::string(variables.empty() ? "" : " and off"));
        variables["reasoning_effort"] = thinking == Thinking::Low      ? "low"
                                        : thinking == Thinking::Medium ? "medium"
                                                                       : "high";
    }
    thinking_ = std::move(variables);
    options_.thinking = thinking;
}

// Whether the template can be interpreted: it renders a plain question, or rejects it with
// raise_exception().
bool ChatPrompt::try_template(std::string_view source) {
    try {
        template_ = jinja::Template::parse(source);
        const Message question{"user", "?"};
        interpret({&question, 1}, true, tools_);
        return true;
    } catch (const jinja::TemplateError &error) {
        if (error.kind == jinja::TemplateError::Kind::Raised) return true;
        problem_ = error.what();
        template_.reset();
        return false;
    }
}

void ChatPrompt::fall_back() {
    const bool marked = tokenizer_->find("<|im_start|>").has_value();
    template_ = jinja::Template::parse(marked ? kChatMl : kTranscript);
    if (!marked) stops_ = {"\nUser:"};
    note_ = (has_template_ ? "the file's chat template cannot be interpreted (" + problem_ + ")"
                           : std::string("the file has no chat template")) +
            ": falling back to " + (marked ? "ChatML" : "plain text (User: ... Assistant: ...)");
}

jinja::Value ChatPrompt::message_value(const Message &message) const {
    auto dict = std::make_shared<jinja::Dict>();
    dict->set("role", content(message.role));
    const std::string &source = template_->source();
    const auto asks_for = [&](std::string_view text) { return source.find(text) != source.npos; };
    std::string text = message.content;
    if (!message.reasoning.empty()) {
        const bool harmony = reasoning_.kind == ReasoningStyle::Kind::Harmony;
        if (asks_for("reasoning_content"))
            dict->set("reasoning_content", content(message.reasoning));
        else if (harmony && asks_for("thinking"))
            dict->set("thinking", content(message.reasoning));
        else if (!harmony && asks_for(reasoning_.close))
            text = reasoning_.open + "\n" + message.reasoning + "\n" + reasoning_.close + "\n\n" + text;
    }
    const bool no_content = calls_without_content_ && text.empty() && !message.tool_calls.empty();
    dict->set("content", no_content ? jinja::Value::none() : content(text));
    if (!message.tool_calls.empty()) dict->set("tool_calls", calls_value(message.tool_calls));
    if (!message.tool_call_id.empty()) dict->set("tool_call_id", content(message.tool_call_id));
    if (!message.name.empty()) dict->set("name", content(message.name));
    return jinja::Value(std::shared_ptr<const jinja::Dict>(std::move(dict)));
}

// OpenAI's list of calls, the arguments as objects or as text, as the template requires.
jinja::Value ChatPrompt::calls_value(const std::string &calls) const {
    Json list;
    try {
        list = parse_json(calls);
    } catch (const JsonError &) {
    }
    for (Json &call : list) try {
            Json &arguments = call.at("function").at("arguments");
            if (arguments_as_text_ && !arguments.is_string()) {
                arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
            } else if (!arguments_as_text_ && arguments.is_string()) {
                const std::string_view text = trimmed(arguments.get_ref<const std::string &>());
                arguments = text.empty() ? Json::object() : parse_json(text);
            }
        } catch (const std::exception &) {  // this call stays as it is
        }
    return jinja::from_json(list);
}

std::vector<Segment> ChatPrompt::interpret(std::span<const Message> messages, bool add_generation_prompt,
                                           const jinja::Value &tools) const {
    jinja::Variables variables;
    std::vector<jinja::Value> list;
    for (const Message &message : messages) list.push_back(message_value(message));
    variables.set("messages", jinja::Value::list(std::move(list)));
    variables.set("tools", tools);
    variables.set("documents", jinja::Value::none());
    variables.set("add_generation_prompt", jinja::Value::boolean(add_generation_prompt));
    if (tokenizer_->bos()) variables.set_special("bos_token", tokens_.bos);
    if (tokenizer_->eos()) variables.set_special("eos_token", tokens_.eos);
    for (const auto *more : {&thinking_, &options_.variables}) {
        if (!more->is_object()) continue;
        for (const auto &[name, value] : more->items()) variables.set(name, jinja::from_json(value));
    }
    std::vector<Segment> segments = template_->render(variables, options_.render).segments();
    if (add_generation_prompt && !generation_prompt_.empty()) segments.push_back({generation_prompt_, true});
    return segments;
}

std::vector<Segment> ChatPrompt::render(std::span<const Message> messages, bool add_generation_prompt,
                                        const nlohmann::ordered_json *tools) const {
    const jinja::Value shown = !tools           ? tools_
                               : tools->empty() ? jinja::Value::none()
                                                : jinja::from_json(*tools);
    try {
        return interpret(messages, add_generation_prompt, shown);
    } catch (const jinja::TemplateError &error) {
        const bool refused = error.kind == jinja::TemplateError::Kind::Raised;
        if (!refused || messages.empty() || messages[0].role != "system") throw;
        return interpret(with_system_merged(messages), add_generation_prompt, shown);
    }
}

}  // namespace runnel::text
