// The calls of tools that MCP servers offer (mcp/): asks before each one, runs it, and adds its result.
#include <algorithm>
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/chat/mcp/content.h"
#include "engine/commands/chat/mcp/servers.h"
#include "engine/text/utf8.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr size_t kMostCalls = 25;                         // in a turn
constexpr size_t kMostResult = size_t{64} << 10;          // bytes of a result in the prompt,
constexpr size_t kLeastResult = 1024, kBytesOfToken = 2;  // and no more than about half of the context
constexpr size_t kMostShown = size_t{16} << 10;           // bytes of the arguments
constexpr size_t kColumns = 100;

}  // namespace

// How the user decides about a call.
enum class Chat::Consent { Yes, No, Stop };

Chat::Consent Chat::consent_to(const std::string &name, const std::string &arguments) {
    const mcp::Servers::Tool &tool = *servers_->find(name);
    const std::string shown =
        gguf::printable(tool.server->name()) + ": " + gguf::printable(tool.definition->name, 200) + " " +
        gguf::printable(arguments, kMostShown) +
        (arguments.size() > kMostShown ? " (" + std::to_string(arguments.size()) + " bytes in all)" : "");
    if (servers_->is_allowed(tool)) {
        say(shown);
        return Consent::Yes;
    }
    if (!terminal_) {
        io_.note(shown + ": not run, because --mcp-allow does not name " + name);
        return Consent::No;
    }
    io_.err.try_write(shown + "\n");
    std::string answer;
    if (lines_->read("run it? [y]es, [a]lways, [N]o ", answer) != LineSource::Event::Line)
        return Consent::Stop;
    if (answer == "a" || answer == "A" || answer == "always") servers_->allow(tool);
    const bool is_yes = answer == "y" || answer == "Y" || answer == "yes";
    return is_yes || servers_->is_allowed(tool) ? Consent::Yes : Consent::No;
}

// The result of one call for the model. nullopt: the user ends the turn.
std::optional<std::string> Chat::result_of(const std::string &name, const std::string &arguments) {
    const mcp::Servers::Tool *tool = servers_->find(name);
    if (!tool) {
        io_.note("the model calls " + gguf::printable(name) + " with " + gguf::printable(arguments, 1000));
        return "error: this chat cannot run " + name;
    }
    Json object;
    try {
        object = parse_json(arguments);
    } catch (const JsonError &) {
    }
    if (!object.is_object()) return "error: the arguments are not a JSON object";
    decode::StopRequest stop;
    const InterruptScope interrupts(
        stop, terminal_ ? InterruptScope::Repeated::Ignored : InterruptScope::Repeated::Kills);
    switch (consent_to(name, arguments)) {
        case Consent::Stop:
            return std::nullopt;
        case Consent::No:
            return "error: the user does not allow this call";
        case Consent::Yes:
            break;
    }
    const mcp::CallResult result = servers_->call(*tool, object, stop);
    if (result.kind == mcp::CallResult::Kind::Stopped) return std::nullopt;
    const bool failed = result.kind == mcp::CallResult::Kind::Failed;
    say((failed ? "  failed:\n" : "") + mcp::shortened(result.text, kColumns));
    const size_t context = static_cast<size_t>(engine_.executor().context());
    const size_t most = std::min(kMostResult, std::max(kLeastResult, kBytesOfToken * context / 2));
    return mcp::bounded((failed ? "error: " : "") + result.text, most);
}

size_t Chat::calls_in_turn() const {
    size_t count = 0;
    const Conversation::Id question = conversation_.last_question();
    for (Conversation::Id id = conversation_.head(); id != question && id != Conversation::kRoot;
         id = conversation_.at(id).parent)
        count += conversation_.at(id).message.role == "tool";
    return count;
}

bool Chat::run_calls() {
    if (!servers_) return false;
    const text::Message answer = conversation_.at(conversation_.head()).message;
    if (answer.role != "assistant" || answer.tool_calls.empty()) return false;
    const Json calls = parse_json(answer.tool_calls);
    bool goes_on = !model_.interrupted() && !model_.timed_out();
    size_t before = calls_in_turn();
    for (const Json &call : calls) {
        std::string result = "error: the user stopped this call";
        const std::string name = call["function"]["name"].get<std::string>();
        if (goes_on && ++before > kMostCalls) {
            io_.note("the turn ends after " + std::to_string(kMostCalls) + " calls of tools");
            result = "error: too many calls";
            goes_on = false;
        } else if (goes_on) {
            auto given = result_of(name, call["function"]["arguments"].get<std::string>());
            goes_on = given.has_value();
            if (given) result = *std::move(given);
            if (!given && !terminal_) {  // without a terminal, an interrupt ends the chat
                over_ = true;
                code_ = exit_code::kInterrupted;
            }
        }
        conversation_.add({.message = {.role = "tool",
                                       .content = result,
                                       .tool_call_id = mcp::text_member(call, "id"),
                                       .name = name}});
    }
    return goes_on;
}

void Chat::mcp(const std::string &name) {
    if (!servers_) throw InputError("/mcp needs a chat that began with --mcp FILE");
    if (name.empty()) return io_.err.try_write(servers_->overview(kColumns));
    const auto log = servers_->log(name);
    if (!log) throw InputError("there is no MCP server " + gguf::quoted(name));
    io_.err.try_write(text::printable_for_terminal(mcp::plain_text(*log)));
}

}  // namespace runnel::commands
