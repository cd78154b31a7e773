#include "engine/commands/chat/transcript.h"

#include <span>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/completion/openai.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"
#include "gguf/writer.h"

namespace runnel::commands {
namespace {

Json parse(const std::string &text, const std::string &name) {
    try {
        return parse_json(text);
    } catch (const JsonError &error) {
        throw InputError(name + " is not a conversation: it is not JSON: " + error.what());
    }
}

}  // namespace

text::Message message_from(const Json &json, size_t number) {
    const auto text = [&](const char *key) {
        const auto found = json.is_object() ? json.find(key) : json.end();
        if (!json.is_object() || found == json.end() || !found->is_string())
            throw InputError("message " + std::to_string(number) + ": \"" + key +
                             "\" is missing or not a string");
        return found->get<std::string>();
    };
    const auto optional_text = [&](const char *key) {
        const auto found = json.find(key);
        return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    text::Message message{.role = text("role"), .content = {}};
    try {
        message.tool_calls = completion::message_calls(json);
    } catch (const completion::BodyError &error) {
        throw InputError("message " + std::to_string(number) + ": " + error.what());
    }
    const auto content = json.find("content");
    const bool calls_alone = !message.tool_calls.empty() && (content == json.end() || content->is_null());
    if (!calls_alone) message.content = text("content");
    message.reasoning = optional_text("reasoning_content");
    message.tool_call_id = optional_text("tool_call_id");
    message.name = optional_text("name");
    return message;
}

Json message_json(const text::Message &message) {
    Json json = {{"role", message.role}, {"content", message.content}};
    if (!message.reasoning.empty()) json["reasoning_content"] = message.reasoning;
    if (!message.tool_calls.empty()) json["tool_calls"] = parse_json(message.tool_calls);
    if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
    if (!message.name.empty()) json["name"] = message.name;
    return json;
}

std::vector<text::Message> Transcript::all() const {
    std::vector<text::Message> result;
    if (!system.empty()) result.push_back({"system", system});
    result.insert(result.end(), messages.begin(), messages.end());
    return result;
}

void Transcript::save(const std::string &path, bool overwrite) const {
    Json list = Json::array();
    for (const text::Message &m : all()) list.push_back(message_json(m));
    save_text(path, dump({{"messages", list}}, 1), overwrite);
}

void save_text(const std::string &path, const std::string &text, bool overwrite) {
    try {
        gguf::OutputFile file(path, {.overwrite = overwrite, .is_private = true});
        file.write(std::as_bytes(std::span(text)));
        file.commit();
    } catch (const gguf::OutputRefused &) {
        throw;
    } catch (const gguf::WriteError &error) {
        throw OutputError(error.what());
    }
}

Transcript Transcript::load(const std::string &path) {
    const std::string name = gguf::printable(path, 4096);
    const Json json = parse(read_all(path, -1, nullptr, InputFile::Replaceable::Yes), name);
    const auto list = json.is_object() ? json.find("messages") : json.end();
    if (!json.is_object() || list == json.end() || !list->is_array())
        throw InputError(name + " is not a conversation: it has no \"messages\" list");
    Transcript result;
    for (const Json &item : *list) try {
            text::Message message = message_from(item, result.messages.size() + !result.system.empty() + 1);
            if (message.role == "system" && result.messages.empty() && result.system.empty())
                result.system = message.content;
            else
                result.messages.push_back(std::move(message));
        } catch (const InputError &error) {
            throw InputError(name + ": " + error.what());
        }
    return result;
}

}  // namespace runnel::commands
