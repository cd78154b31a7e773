#include "engine/commands/batch/batch_row.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <stdexcept>

#include "engine/commands/cli/nearest.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr std::string_view kRequestId = "batch_req_";

// A value that cannot be used; what() names it.
class RowError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The value of a key; null and absent are the same.
const Json *find(const Json &object, const char *key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool has_type(const Json &object, std::string_view type) {
    const Json *value = find(object, "type");
    return value && value->is_string() && value->get_ref<const std::string &>() == type;
}

[[noreturn]] void fail(const char *key, const char *wanted) {
    throw RowError(std::string("\"") + key + "\" must be " + wanted);
}

std::optional<std::string> text_of(const Json &object, const char *key) {
    const Json *value = find(object, key);
    if (!value) return std::nullopt;
    if (!value->is_string()) fail(key, "a string");
    return value->get<std::string>();
}

void read_sampling(const Json &object, RowRequest &request) {
    for (const auto &[key, value] : object.items()) {
        const decode::SamplingSetting *setting = decode::find_setting_of_key(key);
        if (!setting || value.is_null()) continue;
        if (!value.is_number() || !setting->range.contains(value.get<double>()))
            fail(key.c_str(), setting->range.words().c_str());
        request.sampling.emplace_back(setting, value.get<double>());
    }
}

std::optional<int64_t> integer_of(const Json &object, const char *key, int64_t low, int64_t high) {
    const Json *value = find(object, key);
    if (!value) return std::nullopt;
    const bool large = value->is_number_unsigned() &&
                       value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!value->is_number_integer() || large || value->get<int64_t>() < low || value->get<int64_t>() > high)
        fail(key, ("a whole number from " + std::to_string(low) + " to " + std::to_string(high)).c_str());
    return value->get<int64_t>();
}

// Any 64 bits, with or without sign.
std::optional<uint64_t> seed_of(const Json &object) {
    const Json *value = find(object, "seed");
    if (!value) return std::nullopt;
    if (value->is_number_unsigned()) return value->get<uint64_t>();
    if (!value->is_number_integer()) fail("seed", "a whole number of 64 bits");
    return static_cast<uint64_t>(value->get<int64_t>());
}

std::vector<std::string> stops_of(const Json &object) {
    const Json *value = find(object, "stop");
    if (!value) return {};
    if (value->is_string()) return {value->get<std::string>()};
    if (!value->is_array()) fail("stop", "a string or a list of strings");
    std::vector<std::string> stops;
    for (const Json &stop : *value) {
        if (!stop.is_string()) fail("stop", "a string or a list of strings");
        stops.push_back(stop.get<std::string>());
    }
    return stops;
}

// A string, or OpenAI's list of parts, of which only text can be used.
std::string content_of(const Json &message) {
    const Json *value = find(message, "content");
    if (!value) return {};
    if (value->is_string()) return value->get<std::string>();
    if (!value->is_array()) fail("content", "a string or a list of parts");
    std::string text;
    for (const Json &part : *value) {
        const Json *piece = part.is_object() && has_type(part, "text") ? find(part, "text") : nullptr;
        if (!piece || !piece->is_string())
            throw RowError("\"content\" has a part that is not text: only text can be answered");
        text += piece->get<std::string>();
    }
    return text;
}

std::vector<text::Message> messages_of(const Json &object) {
    const Json *value = find(object, "messages");
    if (!value) return {};
    if (!value->is_array() || value->empty()) fail("messages", "a list of messages, not an empty one");
    std::vector<text::Message> messages;
    for (const Json &message : *value) {
        if (!message.is_object()) fail("messages", "a list of objects with \"role\" and \"content\"");
        const auto role = text_of(message, "role");
        if (!role) throw RowError("a message has no \"role\"");
        messages.push_back({*role, content_of(message)});
    }
    return messages;
}

// What would change the answer and is not there must not be passed over in silence.
void refuse_unsupported(const Json &object) {
    const Json *n = find(object, "n");
    if (n && *n != 1) throw RowError("\"n\" other than 1 is not supported");
    for (const char *key : {"tools", "functions", "response_format"}) {
        const Json *value = find(object, key);
        const bool harmless = value && (value->empty() || (value->is_object() && has_type(*value, "text")));
        if (value && !harmless) throw RowError("\"" + std::string(key) + "\" is not supported");
    }
    for (const char *key : {"stream", "logprobs"}) {
        const Json *value = find(object, key);
        if (value && *value != false) throw RowError("\"" + std::string(key) + "\" is not supported");
    }
}

// Keys that have a meaning here, and those of OpenAI's bodies that change no answer.
bool is_known(std::string_view key, std::span<const std::string> known) {
    return std::ranges::find(known, key) != known.end() || decode::find_setting_of_key(key);
}

const std::vector<std::string> kEnvelope = {"id", "custom_id", "method", "url", "body"};
const std::vector<std::string> kRequest = {"prompt",
                                           "messages",
                                           "max_tokens",
                                           "max_completion_tokens",
                                           "stop",
                                           "seed",
                                           "model",
                                           "n",
                                           "tools",
                                           "functions",
                                           "tool_choice",
                                           "function_call",
                                           "parallel_tool_calls",
                                           "response_format",
                                           "stream",
                                           "stream_options",
                                           "logprobs",
                                           "top_logprobs",
                                           "user",
                                           "metadata",
                                           "store",
                                           "service_tier",
                                           "safety_identifier",
                                           "prompt_cache_key"};

// Keys of `object` that are in none of these lists. Throws RowError for one that looks like a slip.
void note_unknown(const Json &object, std::span<const std::string> known, std::vector<std::string> &unknown) {
    std::vector<std::string> candidates(known.begin(), known.end());
    for (const decode::SamplingSetting &setting : decode::sampling_settings())
        candidates.emplace_back(setting.key);
    for (const auto &[key, value] : object.items()) {
        if (is_known(key, known)) continue;
        if (const auto near = nearest(key, candidates);
            near && key.size() > 4 && edit_distance(key, *near) == 1)
            throw RowError("there is no " + gguf::quoted(key) + ": did you mean " + gguf::quoted(*near) +
                           "?");
        unknown.push_back(key);
    }
}

RowRequest request_of(const Json &object) {
    refuse_unsupported(object);
    RowRequest request;
    request.prompt = text_of(object, "prompt");
    request.messages = messages_of(object);
    if (request.prompt && !request.messages.empty())
        throw RowError("there are both \"prompt\" and \"messages\": one of them is wanted");
    if (!request.prompt && request.messages.empty())
        throw RowError("there is neither \"prompt\" nor \"messages\"");
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    request.max_tokens = integer_of(object, "max_tokens", -1, kMost);
    if (!request.max_tokens) request.max_tokens = integer_of(object, "max_completion_tokens", -1, kMost);
    request.stops = stops_of(object);
    request.seed = seed_of(object);
    read_sampling(object, request);
    return request;
}

Json id_of(const Json &object, const char *key) {
    const Json *id = find(object, key);
    if (!id) return nullptr;
    if (!id->is_string() && !id->is_number()) fail(key, "a string or a number");
    return *id;
}

// Fills what is known before anything can go wrong, so that also an error carries the id.
void identify(const Json &object, RowIdentity &row) {
    if (!find(object, "body")) {
        row.id = id_of(object, "id");
        return;
    }
    row.shape = RowIdentity::Shape::Chat;
    row.id = id_of(object, "custom_id");
    const Json &body = object["body"];
    if (!body.is_object()) fail("body", "an object");
    const auto url = text_of(object, "url");
    const bool chat = url ? *url == "/v1/chat/completions" : body.contains("messages");
    if (!chat) row.shape = RowIdentity::Shape::Completion;
    if (url && !chat && *url != "/v1/completions")
        throw RowError("\"url\" is neither /v1/chat/completions nor /v1/completions");
    row.model = text_of(body, "model").value_or("");
}

void parse_object(const Json &object, Row &row) {
    if (!object.is_object()) throw RowError("the line is not a JSON object");
    identify(object, row.identity);
    const bool openai = row.identity.shape != RowIdentity::Shape::Plain;
    std::vector<std::string> known = kEnvelope;
    if (!openai) known.insert(known.end(), kRequest.begin(), kRequest.end());
    note_unknown(object, known, row.unknown);
    if (openai) note_unknown(object["body"], kRequest, row.unknown);
    row.request = request_of(openai ? object["body"] : object);
    row.request.raw = row.identity.shape == RowIdentity::Shape::Completion;
    if (row.identity.shape == RowIdentity::Shape::Chat && row.request.prompt)
        throw RowError("/v1/chat/completions takes \"messages\", not a \"prompt\"");
    if (row.request.raw && !row.request.prompt)
        throw RowError("/v1/completions takes a \"prompt\", not \"messages\"");
}

Json usage(const decode::AnswerBatch::Finished &answer) {
    const size_t completion = answer.tokens.size();
    return {{"prompt_tokens", answer.prompt_tokens},
            {"completion_tokens", completion},
            {"total_tokens", answer.prompt_tokens + completion}};
}

Json openai_response(const RowIdentity &row, const decode::AnswerBatch::Finished &answer,
                     const std::string &model, const std::string &reasoning) {
    const bool chat = row.shape == RowIdentity::Shape::Chat;
    const std::string number = std::to_string(row.line);
    Json choice = {{"index", 0}};
    if (chat) choice["message"] = {{"role", "assistant"}, {"content", answer.text}};
    if (chat && !reasoning.empty()) choice["message"]["reasoning_content"] = reasoning;
    if (!chat) choice["text"] = answer.text;
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = name(answer.reason);
    const Json body = {{"id", (chat ? "chatcmpl-" : "cmpl-") + number},
                       {"object", chat ? "chat.completion" : "text_completion"},
                       {"created", 0},
                       {"model", row.model.empty() ? model : row.model},
                       {"choices", Json::array({choice})},
                       {"usage", usage(answer)}};
    return {{"status_code", 200}, {"request_id", "req_" + number}, {"body", body}};
}

}  // namespace

void RowRequest::apply(decode::SamplingOptions &options) const {
    for (const auto &[setting, value] : sampling) setting->set(options, value);
}

Row parse_row(std::string_view line, int64_t number) {
    Row row;
    row.identity.line = number;
    try {
        parse_object(parse_json(line), row);
    } catch (const RowError &error) {
        row.error = error.what();
    } catch (const JsonError &error) {
        row.error = std::string("the line is not JSON: ") + error.what();
    }
    return row;
}

Row text_row(std::string_view line, int64_t number) {
    Row row;
    row.identity.line = number;
    row.request.prompt = std::string(line);
    return row;
}

std::string answer_line(const RowIdentity &row, const decode::AnswerBatch::Finished &answer,
                        const std::string &model, const std::string &reasoning) {
    Json out = Json::object();
    if (row.shape != RowIdentity::Shape::Plain) {
        out["id"] = std::string(kRequestId) + std::to_string(row.line);
        out["custom_id"] = row.id;
        out["response"] = openai_response(row, answer, model, reasoning);
        out["error"] = nullptr;
        return dump(out);
    }
    if (!row.id.is_null()) out["id"] = row.id;
    out["line"] = row.line;
    out["text"] = answer.text;
    out["prompt_tokens"] = answer.prompt_tokens;
    out["completion_tokens"] = answer.tokens.size();
    out["finish_reason"] = name(answer.reason);
    if (!reasoning.empty()) out["reasoning"] = reasoning;
    if (answer.forgotten > 0) out["forgotten_tokens"] = answer.forgotten;
    return dump(out);
}

std::string error_line(const RowIdentity &row, const std::string &error) {
    Json out = Json::object();
    const Json what = {{"message", "line " + std::to_string(row.line) + ": " + error}, {"line", row.line}};
    if (row.shape != RowIdentity::Shape::Plain) {
        out["id"] = std::string(kRequestId) + std::to_string(row.line);
        out["custom_id"] = row.id;
        out["response"] = nullptr;
        out["error"] = what;
        out["error"]["code"] = "invalid_request";
        return dump(out);
    }
    if (!row.id.is_null()) out["id"] = row.id;
    out["line"] = row.line;
    out["error"] = what;
    return dump(out);
}

std::optional<WrittenRow> parse_written(std::string_view line) {
    Json object;
    try {
        object = parse_json(line);
    } catch (const JsonError &) {
        return std::nullopt;
    }
    if (!object.is_object()) return std::nullopt;
    WrittenRow row{0, nullptr, find(object, "error") != nullptr};
    if (object.contains("custom_id")) {
        if (const Json *id = find(object, "custom_id"); id && !id->is_structured()) row.id = *id;
        const Json *id = find(object, "id");
        if (!id || !id->is_string()) return std::nullopt;
        const std::string text = id->get<std::string>();
        if (!text.starts_with(kRequestId)) return std::nullopt;
        const char *const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data() + kRequestId.size(), end, row.line);
        if (error != std::errc() || rest != end) return std::nullopt;
    } else {
        const Json *number = find(object, "line"), *id = find(object, "id");
        if (!number || !number->is_number_integer()) return std::nullopt;
        row.line = number->get<int64_t>();
        if (id && !id->is_structured()) row.id = *id;
    }
    return row.line > 0 ? std::optional(row) : std::nullopt;
}

}  // namespace runnel::commands
