// Messages of a conversation, and chat templates for files that have none.
#pragma once

#include <string>
#include <string_view>

namespace runnel::text {

struct Message {
    std::string role;  // "system", "user", "assistant"; templates may know others
    std::string content;
    std::string reasoning{};             // of an answer: the model's reasoning; not part of the content
    std::string tool_calls{};            // of an answer: OpenAI's list of calls, as JSON; empty: none
    std::string tool_call_id{}, name{};  // of a tool's result
};

// Neither template writes BOS: Tokenizer::encode with add_special adds it if the model needs one.
inline constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// "User: ... Assistant: ...", the system message in front.
inline constexpr std::string_view kTranscript =
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] | trim + '\\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n' }}"
    "{% else %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

// Older files of RWKV have this name in place of a template, and "\n\n" as the end of a turn.
inline constexpr std::string_view kRwkvWorldName = "rwkv-world";
inline constexpr std::string_view kRwkvWorld =
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ 'System: ' + message['content'] | trim + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] | trim + '\\n\\n' }}"
    "{% else %}{{ 'User: ' + message['content'] | trim + '\\n\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

}  // namespace runnel::text
