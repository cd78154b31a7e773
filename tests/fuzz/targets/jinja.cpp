// A chat template, NUL, and its variables as JSON.
#include <nlohmann/json.hpp>

#include "engine/text/jinja/template.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {
namespace {

using Json = nlohmann::ordered_json;

const Json &usual_context() {
    static const Json context = Json::parse(
        R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U \u00e9"},
            {"role": "assistant", "content": "A", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})");
    return context;
}

}  // namespace

void jinja(Input input) {
    using namespace text::jinja;
    const std::string_view all = text_of(input);
    const size_t cut = all.find('\0');
    const std::string_view source = all.substr(0, cut);
    Json context;
    if (cut != all.npos) context = Json::parse(all.substr(cut + 1), nullptr, false);
    if (!context.is_object()) context = usual_context();
    RenderOptions how;
    how.limits.steps = 20000;
    how.limits.memory = 4 << 20;
    how.limits.output = 1 << 20;
    how.clock = [] { return std::tm{}; };
    try {
        const Template chat = Template::parse(source);
        require(chat.render(Variables::of(context), how).bytes().size() <= how.limits.output,
                "the output is bounded");
    } catch (const TemplateError &error) {
        const std::string_view message = error.what();
        require(message.size() < 4096 && message.find('\n') == message.npos, "a message is one line");
    }
}

}  // namespace runnel::fuzz
