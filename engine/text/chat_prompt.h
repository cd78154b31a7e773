// Renders a conversation as the text that a model expects, with the chat template of its file, which is
// interpreted (jinja/). If a file has none, or one that cannot be interpreted, a common template is used
// (chat_template.h), and note() says so.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat_template.h"
#include "engine/text/jinja/template.h"
#include "engine/text/reasoning.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tool_calls/formats.h"
#include "gguf/file.h"

namespace runnel::text {

// tokenizer.chat_template is "default"; tokenizer.chat_template.NAME are the others ("tool_use", ...).
struct NamedTemplate {
    std::string name;
    std::string_view source;  // in the file's mapping
};
std::vector<NamedTemplate> chat_templates(const gguf::File &file);
// The template of this name. Without a name: tool_use if there are tools and the file has it, otherwise
// default, otherwise the first. Null if there is none.
const NamedTemplate *choose_template(std::span<const NamedTemplate> templates, std::string_view name,
                                     bool has_tools);

// The texts of the model's BOS and EOS tokens; empty if the model has none.
struct TemplateTokens {
    std::string bos, eos;
    static TemplateTokens of(const Tokenizer &tokenizer);
};

struct ChatPromptOptions {
    std::optional<std::string> source{};  // a template instead of the file's
    std::optional<std::string> name{};    // the name of one of the file's templates
    nlohmann::ordered_json tools{};       // a list of definitions, or null
    nlohmann::ordered_json variables{};   // an object of further variables for the template, or null
    Thinking thinking = Thinking::Default;
    jinja::RenderOptions render{};
};

class ChatPrompt {
  public:
    // File and tokenizer must outlive it. Throws jinja::TemplateError if options.source is not a valid
    // template, std::out_of_range for a name that the file does not have, and what set_thinking() throws.
    ChatPrompt(const gguf::File &file, const Tokenizer &tokenizer, ChatPromptOptions options = {});

    // Whether there is a template, in the file or given; it may be one that cannot be interpreted.
    bool has_template() const { return has_template_; }
    // A message for the user if the template is not used; empty otherwise.
    const std::string &note() const { return note_; }
    // Strings that end an answer in formats whose turns are plain text; otherwise the vocabulary's end tokens do.
    const std::vector<std::string> &stops() const { return stops_; }
    const ReasoningStyle &reasoning() const { return reasoning_; }

    // Sets the template's variables that turn reasoning on or off and choose its effort: enable_thinking,
    // thinking, reasoning_effort, thinking_budget. options.variables take precedence. Throws
    // std::invalid_argument, and changes nothing, if the template lacks such a variable.
    void set_thinking(Thinking thinking);
    Thinking thinking() const { return options_.thinking; }

    // Text of the template is special, text of the messages is not: see Tokenizer::encode(segments). Passes
    // reasoning under the name that the template reads, or drops it. A system message that the template
    // rejects is put before the first user message. Throws jinja::TemplateError. `tools`: definitions in
    // place of options.tools.
    std::vector<Segment> render(std::span<const Message> messages, bool add_generation_prompt = true,
                                const nlohmann::ordered_json *tools = nullptr) const;

    // The format of tool calls, taken from how the template writes the calls of a conversation; null if it
    // writes none or the format is unknown.
    const ToolFormat *tool_format() const { return tool_format_; }

  private:
    std::vector<Segment> interpret(std::span<const Message> messages, bool add_generation_prompt,
                                   const jinja::Value &tools) const;
    void find_tool_format();
    jinja::Value message_value(const Message &message) const;
    jinja::Value calls_value(const std::string &calls) const;
    bool try_template(std::string_view source);
    void fall_back();
    std::string text_before_answers() const;

    const Tokenizer *tokenizer_;
    TemplateTokens tokens_;
    ChatPromptOptions options_;
    nlohmann::ordered_json thinking_ = nlohmann::ordered_json::object();  // variables
    jinja::Value tools_;
    std::optional<jinja::Template> template_;  // has a value once constructed
    std::string generation_prompt_;            // for templates that do not use add_generation_prompt
    bool has_template_ = false;
    std::string note_, problem_;
    std::vector<std::string> stops_;
    ReasoningStyle reasoning_;
    const ToolFormat *tool_format_ = nullptr;
    // The template takes the arguments of calls as text, not as objects; it takes no content next to calls.
    bool arguments_as_text_ = false, calls_without_content_ = false;
};

}  // namespace runnel::text
