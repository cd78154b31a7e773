// Bodies of OpenAI's API: reads a Request from JSON, and writes an answer as JSON.
//
// A body has "prompt": TEXT or "messages": [{"role": .., "content": ..}, ..], and optionally "max_tokens" (or
// "max_completion_tokens"), "seed", "stop", and the sampling settings under their keys
// (decode/sampling_settings.h), "tools", "tool_choice" and "parallel_tool_calls". Messages may have "tool_calls"
// (of an assistant) and "tool_call_id" (of a tool). An unsupported key that would change the answer is an error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/completion/event.h"
#include "engine/completion/logprobs.h"
#include "engine/completion/request.h"
#include "engine/decode/sampling_settings.h"
#include "engine/text/json.h"

namespace runnel::completion {

using Json = text::Json;

// An invalid or unsupported value; what() names its key.
class BodyError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The value of a key; null if it is null or absent. Precondition: `object` is an object.
const Json *find_value(const Json &object, const char *key);
// A string; nullopt if it is null or absent. Throws BodyError for another type.
std::optional<std::string> text_value(const Json &object, const char *key);

// OpenAI's "tool_calls" of a message, checked, as JSON text; empty if there are none. Throws BodyError.
std::string message_calls(const Json &message);

struct Body {
    std::optional<std::string> prompt;  // either this or messages
    std::optional<std::string> suffix;  // with a prompt: infill
    std::vector<text::Message> messages;
    std::optional<int64_t> max_tokens;
    std::vector<std::string> stops, bans;  // "stop", "ban"
    std::optional<uint64_t> seed;
    std::vector<std::pair<const decode::SamplingSetting *, double>> sampling;
    // "samplers": names or letters as text, or a list of names; "dry_sequence_breakers": a list of texts.
    std::optional<decode::SamplerOrder> samplers;
    std::optional<std::vector<std::string>> dry_breakers;
    // "response_format" (json_object, json_schema), vLLM's "structured_outputs" and "guided_..".
    std::optional<grammar::Source> constraint;
    // The number of alternatives to report for each token: "logprobs": true with "top_logprobs" (chat), or
    // "logprobs": N (completions); vLLM's "prompt_logprobs". -1: the body turns log-probabilities off.
    std::optional<int32_t> logprobs, prompt_logprobs;
    std::optional<int64_t> thinking_budget;
    std::optional<Json> tools;               // a list of definitions
    bool no_tools = false;                   // "tools" is an empty list: those of --tools do not apply
    std::optional<std::string> tool_choice;  // as ToolUse::choose() takes it
    std::optional<std::string> tool_name;    // in place of tool_choice: as ToolUse::choose_tool() takes it
    std::optional<bool> parallel_calls;

    // The tools of the body, or those of `defaults` (may be null), with the body's tool choice; null if there are
    // none. With `no_tools`, an empty list. Throws BodyError.
    std::shared_ptr<const text::ToolUse> tool_use(std::shared_ptr<const text::ToolUse> defaults) const;

    // Overrides the request's settings with these and adds the stop strings and the bans. Does not change the
    // input.
    void apply(Request &request) const;
};

// All known keys but those of the sampling settings, with OpenAI's keys that do not change the answer.
std::span<const std::string> body_keys();
// Throws BodyError. Precondition: `object` is an object.
Body parse_body(const Json &object);

// A whole answer.
struct Reply {
    std::string text, reasoning;
    FinishReason reason = FinishReason::Stop;
    Usage usage = {};
    std::optional<bool> complete = {};  // Done::complete
    std::optional<std::vector<SpelledToken>> logprobs = {}, prompt_logprobs = {};
    std::vector<text::ToolCall> calls = {};
    std::optional<Timings> timings = {};  // not part of OpenAI's bodies
};
enum class Endpoint { Chat, Completion };
// The response to request `number`, which is in its id: "chatcmpl-7". "created" is 0, so that equal runs
// write equal bytes.
Json response_body(Endpoint endpoint, const std::string &number, const std::string &model,
                   const Reply &reply);

}  // namespace runnel::completion
