// Conversations as prompts where a template cannot be interpreted (see chat_prompt.h): the common shapes of
// chat templates, recognized from a template's text.
//
// This does not run the template (Jinja); it knows some shapes and tells them apart by the pieces of
// text they are made of. Plain conversations (system, user and assistant turns with text) then come out
// exactly as from these templates of the model makers:
//   ChatML      Qwen 2, 2.5, 3, 3-Coder; OpenHermes 2.5; SmolLM2; LFM2; Phi-4 (no line breaks, <|im_sep|>)
//   Llama 2     Llama-2-chat
//   Llama 3     3, 3.1, 3.2 (with the dates these put in front)
//   Mistral     v0.1 (Mixtral 8x7B), v0.3, Tekken (Nemo)
//   Gemma       2, 3
//   Phi-3       Phi-3, Phi-3.5
//   Zephyr      TinyLlama-Chat, Zephyr
// Where a template refuses a system message (Gemma 2, Mistral v0.1), it is put in front of the first user
// message, as their successors do. Templates that are none of these are not recognized.
//
// Who adds BOS: the rendered text starts with the BOS text where the template says so. Tokenizer::encode with
// add_special adds the BOS that the model wants and is not there yet, so the two never make two.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::text {

struct Message {
    std::string role;  // "system", "user", "assistant"; others where the shape writes the role's name
    std::string content;
    std::string reasoning{};  // of an answer: what the model thought first; not part of the content
};

// How a conversation becomes text. In the strings below, "{bos}" and "{eos}" stand for these tokens' texts.
struct ChatShape {
    enum class Trim {
        None,
        Answers,  // white space around the assistant's messages
        Content,  // around each message
        Turn,     // around what a turn holds, merged system message included
    };
    enum class SystemPlace { OwnTurn, FirstUser, LastUser };
    struct Turn {
        std::string before, after;  // "{role}" is the message's role
    };

    std::string name;   // "ChatML": for messages
    std::string start;  // before everything
    Turn system, user, assistant, other;
    std::string generation_prompt, no_generation_prompt;  // the end, when an answer is asked for or not

    SystemPlace system_place = SystemPlace::OwnTurn;
    Turn merged_system{"", "\n\n"};             // around a system message that is put into a user's turn
    std::string system_prefix;                  // what stands in front of the text of the system message
    std::optional<std::string> default_system;  // for conversations that have none

    Trim trim = Trim::None;
    bool skips_empty_system = false;
    bool drops_reasoning = false;  // "...</think>" is left out of answers before the last user message
};

// `today` as in "01 Jun 2025", for the templates that ask for the date; empty: the date they fall back to.
std::optional<ChatShape> recognize(std::string_view template_text, std::string_view today = {});

// The texts of the model's BOS and EOS tokens; empty for a model that has none.
struct TemplateTokens {
    std::string bos, eos;
    static TemplateTokens of(const Tokenizer &tokenizer);
};

// What the template wrote is special, what the messages hold is not: Tokenizer::encode(segments) then finds
// control tokens in the first only, so that no message can forge one.
std::vector<Segment> render_segments(const ChatShape &shape, std::span<const Message> messages,
                                     const TemplateTokens &tokens, bool add_generation_prompt = true);
// The same as one string.
std::string render(const ChatShape &shape, std::span<const Message> messages, const TemplateTokens &tokens,
                   bool add_generation_prompt = true);

}  // namespace runnel::text
