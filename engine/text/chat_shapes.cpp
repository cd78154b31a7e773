// Recognizes chat templates by the pieces of text that they contain.
#include <algorithm>
#include <initializer_list>

#include "engine/text/chat_template.h"
#include "engine/text/replace.h"

namespace runnel::text {
namespace {

// Normalizes spellings of the same template: removes white space between tokens within tags, and unifies
// quotes, " " and line breaks, x['content'] and x.content, 'a' + 'b' and 'ab'. Apostrophes within strings
// become kApostrophe, so that every ' delimits a string.
constexpr char kApostrophe = '\x01';

std::string normalize(std::string_view source) {
    std::string text;
    bool in_tag = false;
    char quote = 0;
    for (size_t i = 0; i < source.size(); ++i) {
        const char c = source[i];
        const char next = i + 1 < source.size() ? source[i + 1] : '\0';
        if (quote) {
            if (c == '\\' && next) {
                text += next == 'n' ? '\n' : next == '\'' ? kApostrophe : next;
                ++i;
            } else if (c == quote) {
                text += '\'';
                quote = 0;
            } else {
                text += c == '\'' ? kApostrophe : c;
            }
        } else if (in_tag && (c == '\'' || c == '"')) {
            text += '\'';
            quote = c;
        } else if (in_tag && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) {
            continue;
        } else {
            if (c == '{' && (next == '{' || next == '%')) in_tag = true;
            if (c == '}' && i > 0 && (source[i - 1] == '}' || source[i - 1] == '%')) in_tag = false;
            text += c;
        }
    }
    text = replace_all(text, "['content']", ".content");
    text = replace_all(text, "['role']", ".role");
    return replace_all(text, "'+'", "");
}

class Template {
  public:
    explicit Template(std::string_view source) : text_(normalize(source)) {}
    bool has(std::string_view piece) const { return text_.find(piece) != text_.npos; }
    bool has_any(std::initializer_list<std::string_view> pieces) const {
        return std::any_of(pieces.begin(), pieces.end(), [&](std::string_view piece) { return has(piece); });
    }
    bool has_all(std::initializer_list<std::string_view> pieces) const {
        return std::all_of(pieces.begin(), pieces.end(), [&](std::string_view piece) { return has(piece); });
    }
    // The text between `before` and `after` within one string of the template.
    std::optional<std::string> between(std::string_view before, std::string_view after) const {
        // Searches for the next `after` and the next string delimiter only once each: templates are
        // untrusted, and a long one must not take quadratic time.
        size_t end = 0, edge = 0;
        for (size_t at = text_.find(before); at != text_.npos; at = text_.find(before, at + 1)) {
            const size_t begin = at + before.size();
            if (end < begin) end = text_.find(after, begin);
            if (end == text_.npos) return std::nullopt;
            if (edge < begin) edge = text_.find_first_of("'{}", begin);
            if (edge < end) continue;
            std::string found = text_.substr(begin, end - begin);
            std::replace(found.begin(), found.end(), kApostrophe, '\'');
            return found;
        }
        return std::nullopt;
    }
    std::string bos() const { return has("bos_token") ? "{bos}" : ""; }

  private:
    std::string text_;
};

ChatShape same_turns(std::string name, const ChatShape::Turn &turn) {
    ChatShape shape;
    shape.name = std::move(name);
    shape.system = shape.user = shape.assistant = shape.other = turn;
    return shape;
}

// Each role has a token of its own.
ChatShape named_turns(std::string name, const std::string &after) {
    ChatShape shape;
    shape.name = std::move(name);
    shape.system = {"<|system|>\n", after};
    shape.user = shape.other = {"<|user|>\n", after};
    shape.assistant = {"<|assistant|>\n", after};
    return shape;
}

std::optional<ChatShape> chat_ml(const Template &source) {
    if (!source.has_all({"<|im_start|>", "<|im_end|>"})) return std::nullopt;
    // These have more than the shape: Kimi, SmolLM3, Hermes 3 for tools and others with a preamble.
    if (source.has_any({"<|im_middle|>", "reasoning_mode", "strftime_now", "Metadata",
                        "You are a function calling AI model"}))
        return std::nullopt;
    const bool phi4 = source.has("<|im_sep|>");
    if (!phi4 && !source.has("<|im_end|>\n")) return std::nullopt;
    ChatShape shape = phi4 ? same_turns("ChatML (Phi-4)", {"<|im_start|>{role}<|im_sep|>", "<|im_end|>"})
                           : same_turns("ChatML", {"<|im_start|>{role}\n", "<|im_end|>\n"});
    shape.start = source.bos();
    shape.generation_prompt = phi4 ? "<|im_start|>assistant<|im_sep|>" : "<|im_start|>assistant\n";
    shape.default_system = source.between("<|im_start|>system\n", "<|im_end|>");
    shape.skips_empty_system = source.has("{%-ifns.system_prompt-%}");
    shape.drops_reasoning = source.has("content.split('</think>')");
    return shape;
}

std::optional<ChatShape> llama3(const Template &source, std::string_view today) {
    if (!source.has_all({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})) return std::nullopt;
    if (!source.has(".content|trim")) return std::nullopt;
    ChatShape shape = same_turns("Llama 3", {"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"});
    shape.start = source.bos();
    shape.generation_prompt = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    shape.trim = ChatShape::Trim::Content;
    if (!source.has("Today Date: ")) return shape;
    // From 3.1 on there is always a system message, which starts with dates.
    shape.name = "Llama 3.1";
    const bool asks = source.has("strftime_now") && !today.empty();
    const std::string date =
        asks ? std::string(today) : source.between("date_string='", "'").value_or("26 Jul 2024");
    shape.system_prefix = "Cutting Knowledge Date: December 2023\nToday Date: " + date + "\n\n";
    shape.default_system = "";
    return shape;
}

std::optional<ChatShape> llama2(const Template &source) {
    if (!source.has_all({"[INST] ", "<<SYS>>\n"})) return std::nullopt;
    ChatShape shape;
    shape.name = "Llama 2";
    shape.user = shape.other = {"{bos}[INST] ", " [/INST]"};
    shape.assistant = {" ", " {eos}"};
    shape.system_place = ChatShape::SystemPlace::FirstUser;
    shape.merged_system = {"<<SYS>>\n", "\n<</SYS>>\n\n"};
    shape.trim =
        source.has(".strip()") || source.has("|trim") ? ChatShape::Trim::Turn : ChatShape::Trim::None;
    return shape;
}

std::optional<ChatShape> mistral(const Template &source) {
    // Templates with [SYSTEM_PROMPT] (v7) include long texts.
    if (!source.has("[INST]") || source.has("[SYSTEM_PROMPT]")) return std::nullopt;
    ChatShape shape;
    shape.start = source.bos();
    const bool v1 = source.has(" [/INST]"), spaced = source.has("[INST] ");
    shape.name = v1 ? "Mistral v0.1" : spaced ? "Mistral v0.3" : "Mistral Tekken";
    shape.user = shape.other = {spaced ? "[INST] " : "[INST]", v1 ? " [/INST]" : "[/INST]"};
    shape.assistant = {source.has("' '+message.content") ? " " : "",
                       source.has("eos_token+' '") ? "{eos} " : "{eos}"};
    shape.system_place = v1 ? ChatShape::SystemPlace::FirstUser : ChatShape::SystemPlace::LastUser;
    if (source.has("message.content|trim+eos_token")) shape.trim = ChatShape::Trim::Answers;
    return shape;
}

std::optional<ChatShape> gemma(const Template &source) {
    if (!source.has_all({"<start_of_turn>", "<end_of_turn>\n"})) return std::nullopt;
    ChatShape shape;
    shape.name = "Gemma";
    shape.start = source.bos();
    shape.user = {"<start_of_turn>user\n", "<end_of_turn>\n"};
    shape.other = {"<start_of_turn>{role}\n", "<end_of_turn>\n"};
    shape.assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"};
    shape.generation_prompt = "<start_of_turn>model\n";
    shape.system_place = ChatShape::SystemPlace::FirstUser;
    shape.trim = ChatShape::Trim::Content;
    return shape;
}

std::optional<ChatShape> phi3(const Template &source) {
    if (!source.has_all({"<|user|>\n", "<|assistant|>\n", "<|end|>\n"})) return std::nullopt;
    ChatShape shape = named_turns("Phi-3", "<|end|>\n");
    shape.start = source.bos();
    shape.generation_prompt = "<|assistant|>\n";
    if (source.has("{%else%}{{eos_token}}")) shape.no_generation_prompt = "{eos}";
    shape.skips_empty_system = true;
    return shape;
}

std::optional<ChatShape> zephyr(const Template &source) {
    if (!source.has_all(
            {"'<|user|>\n'+message.content+eos_token", "'<|assistant|>\n'+message.content+eos_token"}))
        return std::nullopt;
    ChatShape shape = named_turns("Zephyr", "{eos}\n");
    shape.start = source.bos();
    shape.generation_prompt = "<|assistant|>\n";
    return shape;
}

}  // namespace

std::optional<ChatShape> recognize(std::string_view template_text, std::string_view today) {
    const Template source(template_text);
    if (auto shape = chat_ml(source)) return shape;
    if (auto shape = llama3(source, today)) return shape;
    if (auto shape = llama2(source)) return shape;
    if (auto shape = mistral(source)) return shape;
    if (auto shape = gemma(source)) return shape;
    if (auto shape = phi3(source)) return shape;
    return zephyr(source);
}

}  // namespace runnel::text
