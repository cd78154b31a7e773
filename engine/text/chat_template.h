// Renders conversations whose template cannot be interpreted (see chat_prompt.h): recognizes
// the common shapes of chat templates by the text of the template, without running it (Jinja).
// Plain conversations (system, user and assistant turns with text) come out exactly as from
// these templates:
//   ChatML      Qwen 2, 2.5, 3, 3-Coder; OpenHermes 2.5; SmolLM2; LFM2; Phi-4 (no line breaks, <|im_sep|>)
//   Llama 2     Llama-2-chat
//   Llama 3     3, 3.1, 3.2 (with the dates these put in front)
//   Mistral     v0.1 (Mixtral 8x7B), v0.3, Tekken (Nemo)
//   Gemma       2, 3
//   Phi-3       Phi-3, Phi-3.5
//   Zephyr      TinyLlama-Chat, Zephyr
// If a template rejects a system message (Gemma 2, Mistral v0.1), it is put in front of the
// first user message, as later templates of these makers do. Other templates are not
// recognized.
//
// BOS: the rendered text starts with the BOS text if the template writes it. Tokenizer::encode
// with add_special adds a BOS only if the model needs one and the text does not have it, so
// there are never two.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::text {

struct Message {
    std::string role;  // "system", "user", "assistant"; others in shapes that write the role's name
    std::string content;
    std::string reasoning{};             // of an answer: the model's reasoning; not part of the content
    std::string tool_calls{};            // of an answer: OpenAI's list of calls, as JSON; empty: none
    std::string tool_call_id{}, name{};  // of a tool's result
};

// The pieces of text around messages. In the strings below, "{bos}" and "{eos}" stand for these tokens' texts.
struct ChatShape {
    enum class Trim {
        None,
        Answers,  // white space around the assistant's messages
        Content,  // around each message
        Turn,     // around the content of a turn, including a merged system message
    };
    enum class SystemPlace { OwnTurn, FirstUser, LastUser };
    struct Turn {
        std::string before, after;  // "{role}" is the message's role
    };

    std::string name;   // "ChatML"; used in messages
    std::string start;  // before everything
    Turn system, user, assistant, other;
    std::string generation_prompt, no_generation_prompt;  // the end, with or without a request for an answer

    SystemPlace system_place = SystemPlace::OwnTurn;
    Turn merged_system{"", "\n\n"};             // around a system message merged into a user's turn
    std::string system_prefix;                  // before the text of the system message
    std::optional<std::string> default_system;  // for conversations that have none

    Trim trim = Trim::None;
    bool skips_empty_system = false;
    bool drops_reasoning = false;  // removes "...</think>" from answers before the last user message
};

// `today`: e.g. "01 Jun 2025", for templates that print the date; empty: the templates' default date.
std::optional<ChatShape> recognize(std::string_view template_text, std::string_view today = {});

// The texts of the model's BOS and EOS tokens; empty if the model has none.
struct TemplateTokens {
    std::string bos, eos;
    static TemplateTokens of(const Tokenizer &tokenizer);
};

// Text of the template is special, text of the messages is not: Tokenizer::encode(segments) then finds
// control tokens in the former only, so that no message can forge one.
std::vector<Segment> render_segments(const ChatShape &shape, std::span<const Message> messages,
                                     const TemplateTokens &tokens, bool add_generation_prompt = true);
// The same as one string.
std::string render(const ChatShape &shape, std::span<const Message> messages, const TemplateTokens &tokens,
                   bool add_generation_prompt = true);

}  // namespace runnel::text
