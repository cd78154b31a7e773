#include "engine/commands/transcript.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

text::Message message_of(const Json &json, size_t number) {
    const auto text = [&](const char *key) {
        const auto found = json.is_object() ? json.find(key) : json.end();
        if (!json.is_object() || found == json.end() || !found->is_string())
            throw InputError("message " + std::to_string(number) + " has no \"" + key +
                             "\" that is a string");
        return found->get<std::string>();
    };
    return {text("role"), text("content")};
}

[[noreturn]] void fail_to_save(const std::string &path) {
    const std::string reason = std::generic_category().message(errno);
    throw OutputError("cannot save to " + gguf::printable(path, 4096) + ": " + reason);
}

}  // namespace

std::vector<text::Message> Transcript::all() const {
    std::vector<text::Message> result;
    if (!system.empty()) result.push_back({"system", system});
    result.insert(result.end(), messages.begin(), messages.end());
    return result;
}

std::string Transcript::undo() {
    while (!messages.empty()) {
        text::Message last = std::move(messages.back());
        messages.pop_back();
        if (last.role == "user") return last.content;
    }
    return "";
}

bool Transcript::forget_oldest() {
    const auto second = std::find_if(messages.begin() + !messages.empty(), messages.end(),
                                     [](const text::Message &m) { return m.role == "user"; });
    if (second == messages.end()) return false;
    messages.erase(messages.begin(), second);
    return true;
}

void Transcript::save(const std::string &path) const {
    Json list = Json::array();
    for (const text::Message &m : all()) list.push_back({{"role", m.role}, {"content", m.content}});
    const std::string beside = path + ".new";
    const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) fail_to_save(path);
    try {
        Output(fd, path).write(dump({{"messages", list}}, 1));
    } catch (...) {
        close(fd);
        unlink(beside.c_str());
        throw;
    }
    const bool stored = fsync(fd) == 0;
    if (close(fd) == 0 && stored && std::rename(beside.c_str(), path.c_str()) == 0) return;
    unlink(beside.c_str());
    fail_to_save(path);
}

Transcript Transcript::load(const std::string &path) {
    const std::string name = gguf::printable(path, 4096);
    const Json json = Json::parse(read_all(path, -1), nullptr, false);
    const auto list = json.is_object() ? json.find("messages") : json.end();
    if (!json.is_object() || list == json.end() || !list->is_array())
        throw InputError(name + " is no conversation: it has no list \"messages\"");
    Transcript result;
    for (const Json &item : *list) try {
            text::Message message = message_of(item, result.messages.size() + !result.system.empty() + 1);
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
