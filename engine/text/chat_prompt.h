// A conversation as the text that a model wants to see: by the chat template of its file, which is
// interpreted (jinja/). Where a file has none, or one that cannot be interpreted, the shape of the template
// is recognized (chat_template.h), or a common one is taken, and note() says so.
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
#include "gguf/file.h"

namespace runnel::text {

// tokenizer.chat_template is "default"; tokenizer.chat_template.NAME are the others ("tool_use", ...).
struct NamedTemplate {
    std::string name;
    std::string_view source;  // in the file's mapping
};
std::vector<NamedTemplate> chat_templates(const gguf::File &file);
// By its name; without one, tool_use where there are tools and the file has it, otherwise default, otherwise
// the first. Null when there is none.
const NamedTemplate *choose_template(std::span<const NamedTemplate> templates, std::string_view name,
                                     bool has_tools);

struct ChatPromptOptions {
    std::optional<std::string> source{};  // a template in place of the file's
    std::optional<std::string> name{};    // of one of the file's templates
    nlohmann::ordered_json tools{};       // a list of definitions, or null
    nlohmann::ordered_json variables{};   // an object of what else the template may ask for, or null
    jinja::RenderOptions render{};
};

class ChatPrompt {
  public:
    // File and tokenizer must outlive it. Throws jinja::TemplateError for options.source that is not a
    // template, std::out_of_range for a name that the file does not have.
    ChatPrompt(const gguf::File &file, const Tokenizer &tokenizer, ChatPromptOptions options = {});

    // There is a template, of the file or given; it may not be one that could be interpreted.
    bool has_template() const { return has_template_; }
    // What the user should know when it is not the template that is used; empty otherwise.
    const std::string &note() const { return note_; }
    // Strings that end an answer where turns are plain text; the vocabulary's end tokens do otherwise.
    const std::vector<std::string> &stops() const { return stops_; }
    const ReasoningStyle &reasoning() const { return reasoning_; }

    // What the template wrote is special, what the messages hold is not: see Tokenizer::encode(segments).
    // Reasoning goes where the template looks for it, and nowhere if it does not. A system message that the
    // template refuses is put in front of the first user message. Throws jinja::TemplateError.
    std::vector<Segment> render(std::span<const Message> messages, bool add_generation_prompt = true) const;

  private:
    std::vector<Segment> interpret(std::span<const Message> messages, bool add_generation_prompt) const;
    jinja::Value message_value(const Message &message) const;
    bool try_template(std::string_view source);
    void fall_back(std::string_view source);

    const Tokenizer *tokenizer_;
    TemplateTokens tokens_;
    ChatPromptOptions options_;
    jinja::Value tools_;
    std::optional<jinja::Template> template_;
    ChatShape shape_;                // where template_ is not there
    std::string generation_prompt_;  // for templates that never write one, though their shape has it
    bool has_template_ = false;
    std::string note_, problem_;
    std::vector<std::string> stops_;
    ReasoningStyle reasoning_;
};

}  // namespace runnel::text
