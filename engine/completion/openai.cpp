#include "engine/completion/openai.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace runnel::completion {
namespace {

[[noreturn]] void fail(const char *key, const char *wanted) {
    throw BodyError(std::string("\"") + key + "\" must be " + wanted);
}

}  // namespace

const Json *find_value(const Json &object, const char *key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> text_value(const Json &object, const char *key) {
    const Json *value = find_value(object, key);
    if (!value) return std::nullopt;
    if (!value->is_string()) fail(key, "a string");
    return value->get<std::string>();
}

namespace {

bool has_type(const Json &object, std::string_view type) {
    const Json *value = find_value(object, "type");
    return value && value->is_string() && value->get_ref<const std::string &>() == type;
}

void read_sampling(const Json &object, Body &body) {
    for (const auto &[key, value] : object.items()) {
        const decode::SamplingSetting *setting = decode::find_setting_of_key(key);
        if (!setting || value.is_null()) continue;
        if (!value.is_number() || !setting->range.contains(value.get<double>()))
            fail(key.c_str(), setting->range.words().c_str());
        body.sampling.emplace_back(setting, value.get<double>());
    }
}

std::optional<std::vector<std::string>> texts_of(const Json &object, const char *key) {
    const Json *value = find_value(object, key);
    if (!value) return std::nullopt;
    const auto is_text = [](const Json &one) { return one.is_string(); };
    if (!value->is_array() || !std::ranges::all_of(*value, is_text)) fail(key, "a list of strings");
    return value->get<std::vector<std::string>>();
}

std::optional<decode::SamplerOrder> samplers_of(const Json &object) {
    const Json *value = find_value(object, "samplers");
    if (!value) return std::nullopt;
    std::string text;
    if (value->is_string()) {
        text = value->get<std::string>();
    } else {
        if (!value->is_array()) fail("samplers", "text or a list of strings");
        const std::vector<std::string> names =
            texts_of(object, "samplers").value_or(std::vector<std::string>());
        for (const std::string &name : names) text += (text.empty() ? "" : ";") + name;
    }
    try {
        return decode::parse_samplers(text);
    } catch (const std::invalid_argument &error) {
        fail("samplers", error.what());
    }
}

std::optional<int64_t> integer_of(const Json &object, const char *key, int64_t low, int64_t high) {
    const Json *value = find_value(object, key);
    if (!value) return std::nullopt;
    const bool large = value->is_number_unsigned() &&
                       value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!value->is_number_integer() || large || value->get<int64_t>() < low || value->get<int64_t>() > high)
        fail(key, ("a whole number from " + std::to_string(low) + " to " + std::to_string(high)).c_str());
    return value->get<int64_t>();
}

// Any 64-bit integer, signed or unsigned.
std::optional<uint64_t> seed_of(const Json &object) {
    const Json *value = find_value(object, "seed");
    if (!value) return std::nullopt;
    if (value->is_number_unsigned()) return value->get<uint64_t>();
    if (!value->is_number_integer()) fail("seed", "a 64-bit integer");
    return static_cast<uint64_t>(value->get<int64_t>());
}

// A text or a list of texts.
std::vector<std::string> texts_of_key(const Json &object, const char *key) {
    const Json *value = find_value(object, key);
    if (!value) return {};
    if (value->is_string()) return {value->get<std::string>()};
    if (!value->is_array()) fail(key, "a string or a list of strings");
    std::vector<std::string> texts;
    for (const Json &text : *value) {
        if (!text.is_string()) fail(key, "a string or a list of strings");
        texts.push_back(text.get<std::string>());
    }
    return texts;
}

// A string, or OpenAI's list of parts, all of which must be text.
std::string content_of(const Json &message) {
    const Json *value = find_value(message, "content");
    if (!value) return {};
    if (value->is_string()) return value->get<std::string>();
    if (!value->is_array()) fail("content", "a string or a list of parts");
    std::string text;
    for (const Json &part : *value) {
        const Json *piece = part.is_object() && has_type(part, "text") ? find_value(part, "text") : nullptr;
        if (!piece || !piece->is_string())
            throw BodyError("\"content\" has a part that is not text: only text is supported");
        text += piece->get<std::string>();
    }
    return text;
}

void read_tools(const Json &object, Body &body) {
    const Json *value = find_value(object, "tools");
    if (!value) return;
    if (!value->is_array()) fail("tools", "a list of definitions");
    body.no_tools = value->empty();
    if (!body.no_tools) body.tools = *value;
}

// auto, required, none, or {"type": "function", "function": {"name": ..}}.
void read_tool_choice(const Json &object, Body &body) {
    const Json *value = find_value(object, "tool_choice");
    if (!value) return;
    if (*value == "auto" || *value == "none" || *value == "required") {
        body.tool_choice = value->get<std::string>();
        return;
    }
    const Json *function = value->is_object() ? find_value(*value, "function") : nullptr;
    const Json *name = function && function->is_object() ? find_value(*function, "name") : nullptr;
    if (!name || !name->is_string())
        fail("tool_choice", "auto, required, none, or an object that names a function");
    body.tool_name = name->get<std::string>();
}

std::optional<bool> truth_of(const Json &object, const char *key) {
    const Json *value = find_value(object, key);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) fail(key, "true or false");
    return value->get<bool>();
}

std::vector<text::Message> messages_of(const Json &object) {
    const Json *value = find_value(object, "messages");
    if (!value) return {};
    if (!value->is_array() || value->empty()) fail("messages", "a non-empty list of messages");
    std::vector<text::Message> messages;
    for (const Json &message : *value) {
        if (!message.is_object()) fail("messages", "a list of objects with \"role\" and \"content\"");
        const auto role = text_value(message, "role");
        if (!role) throw BodyError("a message has no \"role\"");
        messages.push_back({.role = *role,
                            .content = content_of(message),
                            .tool_calls = message_calls(message),
                            .tool_call_id = text_value(message, "tool_call_id").value_or(""),
                            .name = text_value(message, "name").value_or("")});
    }
    return messages;
}

using Kind = grammar::Source::Kind;

// A schema as JSON, or as text.
grammar::Source schema_source(const char *key, const Json &value) {
    if (!value.is_object() && !value.is_boolean() && !value.is_string()) fail(key, "a JSON schema");
    return {.kind = Kind::Schema, .text = value.is_string() ? value.get<std::string>() : value.dump()};
}
grammar::Source text_source(Kind kind, const char *key, const Json &value) {
    if (!value.is_string()) fail(key, "a string");
    return {.kind = kind, .text = value.get<std::string>()};
}
grammar::Source choice_source(const char *key, const Json &value) {
    if (!value.is_array() || value.empty()) fail(key, "a list of strings");
    grammar::Source source{.kind = Kind::Choices};
    for (const Json &choice : value) {
        if (!choice.is_string()) fail(key, "a list of strings");
        source.choices.push_back(choice.get<std::string>());
    }
    return source;
}

std::optional<grammar::Source> response_format_of(const Json &value) {
    if (!value.is_object()) fail("response_format", "an object");
    if (value.empty() || has_type(value, "text")) return std::nullopt;
    if (has_type(value, "json_object")) {
        if (const Json *schema = find_value(value, "schema")) return schema_source("schema", *schema);
        return grammar::Source{.kind = Kind::AnyObject};
    }
    const Json *named = has_type(value, "json_schema") ? find_value(value, "json_schema") : nullptr;
    const Json *schema = named && named->is_object() ? find_value(*named, "schema") : nullptr;
    if (!schema)
        throw BodyError(
            "\"response_format\" must have the type text, json_object, or json_schema with a "
            "\"json_schema\" that has a \"schema\"");
    return schema_source("schema", *schema);
}

// Reads "json", "regex" and so on; each key begins with `prefix`.
void read_structured(const Json &object, const std::string &prefix, std::vector<grammar::Source> &found) {
    const auto read = [&](const char *name, auto make) {
        const std::string key = prefix + name;
        if (const Json *value = find_value(object, key.c_str())) found.push_back(make(key.c_str(), *value));
    };
    read("json", schema_source);
    read("choice", choice_source);
    read("regex", [](const char *key, const Json &value) { return text_source(Kind::Regex, key, value); });
    read("grammar", [](const char *key, const Json &value) { return text_source(Kind::Gbnf, key, value); });
    if (const Json *value = find_value(object, (prefix + "json_object").c_str()); value && *value == true)
        found.push_back({.kind = Kind::AnyObject});
    if (find_value(object, (prefix + "structural_tag").c_str()))
        throw BodyError("\"" + prefix + "structural_tag\" is not supported");
}

std::optional<grammar::Source> constraint_of(const Json &object) {
    std::vector<grammar::Source> found;
    if (const Json *value = find_value(object, "response_format"))
        if (auto source = response_format_of(*value)) found.push_back(std::move(*source));
    if (const Json *value = find_value(object, "structured_outputs")) {
        if (!value->is_object()) fail("structured_outputs", "an object");
        read_structured(*value, "", found);
    }
    read_structured(object, "guided_", found);
    if (found.size() > 1) throw BodyError("there is more than one constraint: give only one");
    if (found.empty()) return std::nullopt;
    return found[0];
}

constexpr int64_t kMostLogprobs = 1000;

std::optional<int32_t> logprobs_of(const Json &object) {
    const auto top = integer_of(object, "top_logprobs", 0, kMostLogprobs);
    const Json *value = find_value(object, "logprobs");
    if (value && value->is_number())
        return static_cast<int32_t>(*integer_of(object, "logprobs", 0, kMostLogprobs));
    if (value && !value->is_boolean()) fail("logprobs", "true, false or a whole number");
    const bool wanted = value && value->get<bool>();
    if (top && *top > 0 && !wanted) throw BodyError("\"top_logprobs\" needs \"logprobs\": true");
    if (!value) return std::nullopt;
    return wanted ? static_cast<int32_t>(top.value_or(0)) : -1;
}

// Throws for unsupported keys that would change the answer.
void refuse_unsupported(const Json &object) {
    const Json *n = find_value(object, "n");
    if (n && *n != 1) throw BodyError("\"n\" other than 1 is not supported");
    if (const Json *value = find_value(object, "functions"); value && !value->empty())
        throw BodyError("\"functions\" is not supported: write \"tools\"");
    if (const Json *value = find_value(object, "stream"); value && *value != false)
        throw BodyError("\"stream\" is not supported");
}

}  // namespace

std::string message_calls(const Json &message) {
    const Json *calls = find_value(message, "tool_calls");
    if (!calls || calls->empty()) return {};
    constexpr const char *kWanted =
        "a list of objects with \"id\" and \"function\": {\"name\", \"arguments\"}";
    if (!calls->is_array()) fail("tool_calls", kWanted);
    Json list = Json::array();
    for (const Json &call : *calls) {
        const Json *function = call.is_object() ? find_value(call, "function") : nullptr;
        if (!function || !function->is_object()) fail("tool_calls", kWanted);
        const auto name = text_value(*function, "name");
        const Json *arguments = find_value(*function, "arguments");
        if (!name || (arguments && !arguments->is_string() && !arguments->is_object()))
            fail("tool_calls", kWanted);
        list.push_back(
            {{"id", text_value(call, "id").value_or("")},
             {"type", "function"},
             {"function", {{"name", *name}, {"arguments", arguments ? *arguments : Json::object()}}}});
    }
    return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::shared_ptr<const text::ToolUse> Body::tool_use(std::shared_ptr<const text::ToolUse> defaults) const {
    const bool has_choice = tool_choice || tool_name;
    const bool must_call = tool_name || (has_choice && *tool_choice != "none" && *tool_choice != "auto");
    if (!tools && (no_tools || !defaults)) {
        if (must_call) throw BodyError("there is a \"tool_choice\" and no \"tools\"");
        return no_tools ? std::make_shared<const text::ToolUse>() : nullptr;
    }
    if (!tools && !has_choice && !parallel_calls) return defaults;
    auto use = std::make_shared<text::ToolUse>(tools ? text::read_tools(*tools) : *defaults);
    if (parallel_calls) use->parallel = *parallel_calls;
    if (has_choice) try {
            tool_name ? use->choose_tool(*tool_name) : use->choose(*tool_choice);
        } catch (const std::invalid_argument &error) {
            throw BodyError(std::string("\"tool_choice\": ") + error.what());
        }
    return use;
}

Body parse_body(const Json &object) {
    refuse_unsupported(object);
    Body body;
    body.prompt = text_value(object, "prompt");
    body.messages = messages_of(object);
    if (body.prompt && !body.messages.empty())
        throw BodyError("there are both \"prompt\" and \"messages\": give only one of them");
    if (!body.prompt && body.messages.empty())
        throw BodyError("there is neither \"prompt\" nor \"messages\": give one of them");
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    body.max_tokens = integer_of(object, "max_tokens", -1, kMost);
    if (!body.max_tokens) body.max_tokens = integer_of(object, "max_completion_tokens", -1, kMost);
    body.suffix = text_value(object, "suffix");
    if (body.suffix && body.suffix->empty()) body.suffix.reset();
    if (body.suffix && !body.prompt) throw BodyError("\"suffix\" needs a \"prompt\": it is not for messages");
    body.stops = texts_of_key(object, "stop");
    body.bans = texts_of_key(object, "ban");
    body.seed = seed_of(object);
    body.thinking_budget = integer_of(object, "thinking_budget", -1, kMost);
    read_sampling(object, body);
    body.samplers = samplers_of(object);
    body.dry_breakers = texts_of(object, "dry_sequence_breakers");
    constexpr size_t kMostBreakers = 64;
    if (body.dry_breakers && body.dry_breakers->size() > kMostBreakers)
        throw BodyError("\"dry_sequence_breakers\" has more than 64 texts");
    body.constraint = constraint_of(object);
    body.logprobs = logprobs_of(object);
    if (const auto top = integer_of(object, "prompt_logprobs", 0, kMostLogprobs))
        body.prompt_logprobs = static_cast<int32_t>(*top);
    read_tools(object, body);
    read_tool_choice(object, body);
    body.parallel_calls = truth_of(object, "parallel_tool_calls");
    return body;
}

std::span<const std::string> body_keys() {
    static const std::vector<std::string> kKeys = {"prompt",
                                                   "messages",
                                                   "max_tokens",
                                                   "max_completion_tokens",
                                                   "suffix",
                                                   "stop",
                                                   "ban",
                                                   "seed",
                                                   "thinking_budget",
                                                   "samplers",
                                                   "dry_sequence_breakers",
                                                   "model",
                                                   "n",
                                                   "tools",
                                                   "functions",
                                                   "tool_choice",
                                                   "function_call",
                                                   "parallel_tool_calls",
                                                   "response_format",
                                                   "structured_outputs",
                                                   "guided_json",
                                                   "guided_regex",
                                                   "guided_choice",
                                                   "guided_grammar",
                                                   "guided_json_object",
                                                   "stream",
                                                   "stream_options",
                                                   "logprobs",
                                                   "top_logprobs",
                                                   "prompt_logprobs",
                                                   "user",
                                                   "metadata",
                                                   "store",
                                                   "service_tier",
                                                   "safety_identifier",
                                                   "prompt_cache_key"};
    return kKeys;
}

void Body::apply(Request &request) const {
    for (const auto &[setting, value] : sampling) setting->set(request.sampling, value);
    request.thinking_budget = thinking_budget.value_or(request.thinking_budget);
    request.sampling.samplers = samplers.value_or(request.sampling.samplers);
    request.sampling.dry_breakers = dry_breakers.value_or(request.sampling.dry_breakers);
    request.sampling.seed = seed.value_or(request.sampling.seed);
    request.limits.max_tokens = max_tokens.value_or(request.limits.max_tokens);
    request.limits.stops.insert(request.limits.stops.end(), stops.begin(), stops.end());
    request.limits.bans.insert(request.limits.bans.end(), bans.begin(), bans.end());
    if (logprobs) {
        request.logprobs = *logprobs >= 0;
        request.top_logprobs = *logprobs;
    }
    request.prompt_logprobs = prompt_logprobs.value_or(request.prompt_logprobs);
    if (!constraint) return;
    request.constraint = constraint;
    request.constraint->options = request.json_style;
}

Json response_body(Endpoint endpoint, const std::string &number, const std::string &model,
                   const Reply &reply) {
    const bool chat = endpoint == Endpoint::Chat;
    Json choice = {{"index", 0}};
    if (chat) choice["message"] = {{"role", "assistant"}, {"content", reply.text}};
    if (chat && !reply.calls.empty()) {
        if (reply.text.empty()) choice["message"]["content"] = nullptr;
        choice["message"]["tool_calls"] = text::calls_json(reply.calls);
    }
    if (chat && !reply.reasoning.empty()) choice["message"]["reasoning_content"] = reply.reasoning;
    if (!chat) choice["text"] = reply.text;
    choice["logprobs"] = nullptr;
    if (reply.logprobs)
        choice["logprobs"] = chat ? chat_logprobs(*reply.logprobs) : completion_logprobs(*reply.logprobs);
    if (reply.prompt_logprobs) choice["prompt_logprobs"] = prompt_logprobs(*reply.prompt_logprobs);
    choice["finish_reason"] = finish_name(reply);
    if (reply.complete && !*reply.complete) choice["complete"] = false;
    const size_t prompt = reply.usage.prompt_tokens, completion = reply.usage.completion_tokens;
    return {{"id", (chat ? "chatcmpl-" : "cmpl-") + number},
            {"object", chat ? "chat.completion" : "text_completion"},
            {"created", 0},
            {"model", model},
            {"choices", Json::array({choice})},
            {"usage",
             {{"prompt_tokens", prompt},
              {"completion_tokens", completion},
              {"total_tokens", prompt + completion}}}};
}

}  // namespace runnel::completion
