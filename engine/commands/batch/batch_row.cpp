#include "engine/commands/batch/batch_row.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>

#include "engine/commands/cli/nearest.h"
#include "engine/decode/sampling_settings.h"
#include "gguf/printable.h"

namespace runnel::commands {

using completion::BodyError;
using completion::find_value;
using completion::text_value;

namespace {

constexpr std::string_view kRequestId = "batch_req_";

// Keys that have a meaning here, and those of OpenAI's bodies that change no answer.
bool is_known(std::string_view key, std::span<const std::string> known) {
    return std::ranges::find(known, key) != known.end() || decode::find_setting_of_key(key);
}

const std::vector<std::string> kEnvelope = {"id", "custom_id", "method", "url", "body"};

// Adds the keys of `object` that are not known to `unknown`. Throws BodyError for a likely typing error.
void note_unknown(const Json &object, std::span<const std::string> known, std::vector<std::string> &unknown) {
    std::vector<std::string> candidates(known.begin(), known.end());
    for (const decode::SamplingSetting &setting : decode::sampling_settings())
        candidates.emplace_back(setting.key);
    constexpr size_t kMost = 100;  // each is compared with all candidates, which takes time
    for (const auto &[key, value] : object.items()) {
        if (unknown.size() == kMost) break;
        if (is_known(key, known)) continue;
        if (const auto near = nearest(key, candidates);
            near && key.size() > 4 && edit_distance(key, *near) == 1)
            throw BodyError("there is no " + gguf::quoted(key) + ": did you mean " + gguf::quoted(*near) +
                            "?");
        unknown.push_back(key);
    }
}

Json id_of(const Json &object, const char *key) {
    const Json *id = find_value(object, key);
    if (!id) return nullptr;
    if (!id->is_string() && !id->is_number())
        throw BodyError("\"" + std::string(key) + "\" must be a string or a number");
    return *id;
}

// Fills in the identity before anything can fail, so that an error carries the id, too.
void identify(const Json &object, RowIdentity &row) {
    if (!find_value(object, "body")) {
        row.id = id_of(object, "id");
        return;
    }
    row.shape = RowIdentity::Shape::Chat;
    row.id = id_of(object, "custom_id");
    const Json &body = object["body"];
    if (!body.is_object()) throw BodyError("\"body\" must be an object");
    const auto url = text_value(object, "url");
    const bool chat = url ? *url == "/v1/chat/completions" : body.contains("messages");
    if (!chat) row.shape = RowIdentity::Shape::Completion;
    if (url && !chat && *url != "/v1/completions")
        throw BodyError("\"url\" is neither /v1/chat/completions nor /v1/completions");
    row.model = text_value(body, "model").value_or("");
}

void parse_object(const Json &object, Row &row) {
    if (!object.is_object()) throw BodyError("the line is not a JSON object");
    identify(object, row.identity);
    const bool openai = row.identity.shape != RowIdentity::Shape::Plain;
    std::vector<std::string> known = kEnvelope;
    const std::span<const std::string> of_body = completion::body_keys();
    if (!openai) known.insert(known.end(), of_body.begin(), of_body.end());
    note_unknown(object, known, row.unknown);
    if (openai) note_unknown(object["body"], of_body, row.unknown);
    row.body = completion::parse_body(openai ? object["body"] : object);
    row.raw = row.identity.shape == RowIdentity::Shape::Completion;
    if (row.identity.shape == RowIdentity::Shape::Chat && row.body.prompt)
        throw BodyError("/v1/chat/completions takes \"messages\", not a \"prompt\"");
    if (row.raw && !row.body.prompt) throw BodyError("/v1/completions takes a \"prompt\", not \"messages\"");
}

Json times_of(const completion::Timings &times) {
    double decode = 0;
    for (const float seconds : times.token_seconds) decode += static_cast<double>(seconds) * 1e3;
    const auto count = static_cast<double>(times.token_seconds.size());
    return {{"queued_ms", times.queued_seconds * 1e3},
            {"ttft_ms", times.first_token_seconds * 1e3},
            {"prefill_ms", times.prefill_tokens > 0 ? Json(times.prefill_seconds * 1e3) : Json()},
            {"prefill_tokens", times.prefill_tokens},
            {"decode_ms", decode},
            {"tpot_ms", count > 0 ? Json(decode / count) : Json()}};
}

}  // namespace

Row parse_row(std::string_view line, int64_t number) {
    Row row;
    row.identity.line = number;
    try {
        parse_object(parse_json(line), row);
    } catch (const BodyError &error) {
        row.error = error.what();
    } catch (const JsonError &error) {
        row.error = std::string("the line is not JSON: ") + error.what();
    }
    return row;
}

Row text_row(std::string_view line, int64_t number) {
    Row row;
    row.identity.line = number;
    row.body.prompt = std::string(line);
    return row;
}

std::string answer_line(const RowIdentity &row, const completion::Reply &reply, const std::string &model) {
    Json out = Json::object();
    if (row.shape != RowIdentity::Shape::Plain) {
        const std::string number = std::to_string(row.line);
        const bool chat = row.shape == RowIdentity::Shape::Chat;
        out["id"] = std::string(kRequestId) + number;
        out["custom_id"] = row.id;
        out["response"] = {
            {"status_code", 200},
            {"request_id", "req_" + number},
            {"body", response_body(chat ? completion::Endpoint::Chat : completion::Endpoint::Completion,
                                   number, row.model.empty() ? model : row.model, reply)}};
        if (reply.timings) out["response"]["body"]["timings"] = times_of(*reply.timings);
        out["error"] = nullptr;
        return dump(out);
    }
    if (!row.id.is_null()) out["id"] = row.id;
    out["line"] = row.line;
    out["text"] = reply.text;
    out["prompt_tokens"] = reply.usage.prompt_tokens;
    out["completion_tokens"] = reply.usage.completion_tokens;
    out["finish_reason"] = finish_name(reply);
    if (reply.logprobs) out["logprobs"] = chat_logprobs(*reply.logprobs);
    if (reply.prompt_logprobs) out["prompt_logprobs"] = prompt_logprobs(*reply.prompt_logprobs);
    if (!reply.calls.empty()) out["tool_calls"] = text::calls_json(reply.calls);
    if (reply.complete) out["complete"] = *reply.complete;
    if (reply.timings) out["timings"] = times_of(*reply.timings);
    if (!reply.reasoning.empty()) out["reasoning"] = reply.reasoning;
    if (const int64_t lost = reply.usage.left_out + reply.usage.forgotten; lost > 0)
        out["forgotten_tokens"] = lost;
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
    // The length of a line of log-probabilities has no limit.
    constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
    Json object;
    try {
        object = parse_json(line, {.bytes = kUnlimited, .values = kUnlimited});
    } catch (const JsonError &) {
        return std::nullopt;
    }
    if (!object.is_object()) return std::nullopt;
    WrittenRow row{0, nullptr, find_value(object, "error") != nullptr};
    if (object.contains("custom_id")) {
        if (const Json *id = find_value(object, "custom_id"); id && !id->is_structured()) row.id = *id;
        const Json *id = find_value(object, "id");
        if (!id || !id->is_string()) return std::nullopt;
        const std::string text = id->get<std::string>();
        if (!text.starts_with(kRequestId)) return std::nullopt;
        const char *const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data() + kRequestId.size(), end, row.line);
        if (error != std::errc() || rest != end) return std::nullopt;
    } else {
        const Json *number = find_value(object, "line"), *id = find_value(object, "id");
        if (!number || !number->is_number_integer()) return std::nullopt;
        row.line = number->get<int64_t>();
        if (id && !id->is_structured()) row.id = *id;
    }
    return row.line > 0 ? std::optional(row) : std::nullopt;
}

}  // namespace runnel::commands
