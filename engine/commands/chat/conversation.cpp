#include "engine/commands/chat/conversation.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// true, 12, null, "text", [1] are what JSON says they are; everything else is text.
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

// A list of definitions, or {"tools": [...]} as requests of other programs have it.
Json read_tools(const std::string &path) {
    const std::string name = gguf::printable(path, 4096);
    try {
        Json tools = parse_json(read_all(path, -1));
        if (tools.is_object() && tools.contains("tools")) tools = Json(std::move(tools["tools"]));
        if (tools.is_array()) return tools;
    } catch (const JsonError &error) {
        throw InputError(name + " is not JSON: " + error.what());
    }
    throw InputError(name + " holds no tools: a JSON list of definitions is wanted");
}

text::ChatPromptOptions prompt_options(const TemplateFlags &flags) {
    if (flags.file && flags.name)
        throw UsageError("choose the template with --chat-template or --template-name, not both");
    text::ChatPromptOptions options;
    if (flags.file) options.source = read_all(*flags.file, -1);
    options.name = flags.name;
    if (flags.tools) options.tools = read_tools(*flags.tools);
    options.variables = Json::object();
    for (const std::string &variable : flags.variables) add_variable(options.variables, variable);
    return options;
}

text::ChatPrompt make_prompt(const gguf::File &file, const text::Tokenizer &tokenizer,
                             const TemplateFlags &flags) {
    try {
        return text::ChatPrompt(file, tokenizer, prompt_options(flags));
    } catch (const text::jinja::TemplateError &error) {
        throw InputError((flags.file ? *flags.file : "the chat template") + ": " + error.what());
    } catch (const std::out_of_range &error) {
        throw UsageError(error.what());
    }
}

}  // namespace

Conversation::Conversation(const gguf::File &file, const text::Tokenizer &tokenizer,
                           const TemplateFlags &flags)
    : tokenizer_(&tokenizer), prompt_(make_prompt(file, tokenizer, flags)) {}

Conversation::Prompt Conversation::prompt(std::span<const text::Message> messages) const {
    try {
        const std::vector<text::Segment> segments = prompt_.render(messages);
        std::string end;  // the last segments are enough to see a mark
        for (size_t i = segments.size() - std::min<size_t>(segments.size(), 4); i < segments.size(); ++i)
            end += segments[i].text;
        return {tokenizer_->encode(segments), prompt_.reasoning().begins_inside(end), 0};
    } catch (const text::jinja::TemplateError &error) {
        const bool refused = error.kind == text::jinja::TemplateError::Kind::Raised;
        throw InputError(std::string(refused ? "the chat template refuses this conversation: "
                                             : "the chat template fails: ") +
                         error.what());
    }
}

decode::Vocabulary Conversation::vocabulary() const {
    decode::Vocabulary vocabulary = decode::vocabulary_of(*tokenizer_);
    if (prompt_.reasoning().kind == text::ReasoningStyle::Kind::None) return vocabulary;
    vocabulary.text = [this, text = vocabulary.text](text::TokenId id) {
        const bool is_mark = tokenizer_->is_control(id) && prompt_.reasoning().is_mark(tokenizer_->piece(id));
        return is_mark ? std::string(tokenizer_->piece(id)) : text(id);
    };
    return vocabulary;
}

std::string Conversation::opening_mark() const {
    const std::string &mark = prompt_.reasoning().open;
    return (mark.empty() ? "<think>" : mark) + "\n";
}

std::string Conversation::closing_mark() const {
    const std::string &mark = prompt_.reasoning().close;
    return "\n" + (mark.empty() ? "</think>" : mark) + "\n\n";
}

AnswerText::AnswerText(const Conversation *conversation, const Conversation::Prompt &prompt,
                       bool show_thinking)
    : conversation_(conversation), show_thinking_(show_thinking) {
    if (conversation) splitter_.emplace(conversation->splitter(prompt));
}

std::string AnswerText::push(const std::string &piece) {
    return splitter_ ? take(splitter_->push(piece)) : piece;
}

std::string AnswerText::end() {
    std::string text = splitter_ ? take(splitter_->flush()) : std::string();
    if (inside_ && show_thinking_) text += "\n";
    return text;
}

std::string AnswerText::take(const std::vector<text::ReasoningSplitter::Piece> &pieces) {
    std::string text;
    for (const auto &piece : pieces) {
        if (piece.is_reasoning) reasoning_ += piece.text;
        if (piece.is_reasoning != std::exchange(inside_, piece.is_reasoning) && show_thinking_)
            text += inside_ ? conversation_->opening_mark() : conversation_->closing_mark();
        if (!piece.is_reasoning || show_thinking_) text += piece.text;
    }
    return text;
}

// Where the prompt begins to differ from one that says nothing.
size_t Conversation::fixed_tokens(std::span<const text::Message> messages) const {
    std::vector<text::Message> silent;
    for (const text::Message &message : messages) {
        if (message.role != "system") break;
        silent.push_back(message);
    }
    silent.push_back({"user", "", ""});
    const std::vector<text::TokenId> a = encode(messages), b = encode(silent);
    const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<size_t>(end - a.begin());
}

}  // namespace runnel::commands
