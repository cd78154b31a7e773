#include "engine/commands/conversation.h"

#include <ctime>
#include <utility>

namespace runnel::commands {
namespace {

text::ChatShape chatml() {
    text::ChatShape shape;
    shape.name = "ChatML";
    shape.system = {"<|im_start|>system\n", "<|im_end|>\n"};
    shape.user = {"<|im_start|>user\n", "<|im_end|>\n"};
    shape.assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"};
    shape.other = {"<|im_start|>{role}\n", "<|im_end|>\n"};
    shape.generation_prompt = "<|im_start|>assistant\n";
    return shape;
}

text::ChatShape transcript() {
    text::ChatShape shape;
    shape.name = "plain text";
    shape.system = {"", "\n\n"};
    shape.user = {"User: ", "\n"};
    shape.assistant = {"Assistant: ", "\n"};
    shape.other = {"{role}: ", "\n"};
    shape.generation_prompt = "Assistant:";
    shape.trim = text::ChatShape::Trim::Answers;
    return shape;
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    char text[32] = "";
    if (localtime_r(&now, &local) != nullptr) std::strftime(text, sizeof text, "%d %b %Y", &local);
    return text;
}

}  // namespace

Conversation::Conversation(const gguf::File &file, const text::Tokenizer &tokenizer)
    : tokenizer_(&tokenizer), tokens_(text::TemplateTokens::of(tokenizer)) {
    const gguf::Value *value = file.find("tokenizer.chat_template");
    const auto source = value ? value->as_string() : std::nullopt;
    has_template_ = source && !source->empty();
    auto known = has_template_ ? text::recognise(*source, today()) : std::nullopt;
    if (known) {
        shape_ = std::move(*known);
        return;
    }
    const bool marked = tokenizer.find("<|im_start|>").has_value();
    shape_ = marked ? chatml() : transcript();
    if (!marked) stops_ = {"\nUser:"};
    note_ = std::string(has_template_ ? "the file's chat template has a shape that is not known"
                                      : "the file has no chat template") +
            ": falling back to " + shape_.name + (marked ? "" : " (User: ... Assistant: ...)");
}

std::vector<text::TokenId> Conversation::encode(std::span<const text::Message> messages) const {
    const std::vector<text::Segment> segments = text::render_segments(shape_, messages, tokens_, true);
    return tokenizer_->encode(segments);
}

}  // namespace runnel::commands
