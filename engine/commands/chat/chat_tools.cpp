// Calls of MCP servers' tools (mcp/): asks before each call, runs it, and adds its result to the conversation.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/chat/mcp/consent.h"
#include "engine/commands/chat/mcp/content.h"
#include "engine/commands/chat/mcp/servers.h"
#include "engine/commands/chat/terminal_lines.h"
#include "engine/text/utf8.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr size_t kMostCalls = 25;  // in a turn
// Limits for a result in the prompt, in bytes: kMostResult, and about half of the context at kBytesOfToken per token,
// but never less than kLeastResult.
constexpr size_t kMostResult = size_t{64} << 10, kLeastResult = 1024, kBytesOfToken = 2;
constexpr size_t kMostNoted = 1000;  // bytes of the arguments in a note
constexpr size_t kResultColumns = 100;

std::string noted(const std::string &arguments) {
    const bool is_whole = arguments.size() <= kMostNoted;
    return mcp::visible(arguments.substr(0, kMostNoted)) +
           (is_whole ? "" : "... (" + std::to_string(arguments.size()) + " bytes in all)");
}

}  // namespace

// The user's decision about a call.
enum class Chat::Consent { Yes, No, Stop };

Chat::Consent Chat::consent_to(const std::string &name, const std::string &arguments) {
    const mcp::Servers::Tool &tool = *servers_->find(name);
    const mcp::CallText call = mcp::call_text(tool.server->name(), tool.definition->name, arguments,
                                              terminal_ ? window_size(STDOUT_FILENO).columns : 80);
    if (servers_->is_allowed(tool)) {
        say(call.name + " " + noted(arguments));
        return Consent::Yes;
    }
    if (!terminal_) {
        io_.note("not run, because --mcp-allow does not name " + name + ": " + call.name + " " +
                 noted(arguments));
        return Consent::No;
    }
    std::string answer;
    const std::string question =
        "run " + call.name + (call.is_whole ? "? [y]es, [a]lways, [N]o " : ", not shown in full? yes, [N]o ");
    if (lines_->ask(call.lines, question, answer) != LineSource::Event::Line) return Consent::Stop;
    if (!call.is_whole) return answer == "yes" ? Consent::Yes : Consent::No;
    const bool always = answer == "a" || answer == "A" || answer == "always";
    if (always) servers_->allow(tool);
    return always || answer == "y" || answer == "Y" || answer == "yes" ? Consent::Yes : Consent::No;
}

// Runs one call and returns its result for the model; nullopt if the user ends the turn.
std::optional<std::string> Chat::result_of(const std::string &name, const std::string &arguments) {
    const mcp::Servers::Tool *tool = servers_->find(name);
    if (!tool) {
        io_.note("the model calls " + gguf::printable(name) + " with " + noted(arguments));
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
    say((failed ? "  failed:\n" : "") + mcp::shortened(result.text, kResultColumns));
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

Chat::Calls Chat::run_calls() {
    if (!servers_) return Calls::None;
    const text::Message answer = conversation_.at(conversation_.head()).message;
    if (answer.role != "assistant" || answer.tool_calls.empty()) return Calls::None;
    const Json calls = parse_json(answer.tool_calls);
    bool goes_on = !model_.interrupted() && !model_.timed_out();
    bool stopped = model_.interrupted();
    std::string refused =
        stopped ? "error: the user stopped this call" : "error: the time limit was reached before this call";
    size_t before = calls_in_turn();
    for (const Json &call : calls) {
        std::string result = refused;
        const std::string name = call["function"]["name"].get<std::string>();
        if (goes_on && ++before > kMostCalls) {
            io_.note("the turn ends after " + std::to_string(kMostCalls) + " tool calls");
            result = refused = "error: too many calls in this turn";
            goes_on = false;
        } else if (goes_on) {
            auto given = result_of(name, call["function"]["arguments"].get<std::string>());
            goes_on = given.has_value();
            stopped = !goes_on;
            if (stopped) refused = "error: the user stopped this call";
            result = goes_on ? *std::move(given) : refused;
            if (stopped && !terminal_) {  // without a terminal, an interrupt ends the chat
                over_ = true;
                code_ = exit_code::kInterrupted;
            }
        }
        add_result(call, result);
    }
    return goes_on ? Calls::Done : stopped ? Calls::Stopped : Calls::None;
}

void Chat::add_result(const Json &call, const std::string &result) {
    const Json *function = text::find_member(call, "function");
    conversation_.add({.message = {.role = "tool",
                                   .content = result,
                                   .tool_call_id = mcp::text_member(call, "id"),
                                   .name = function ? mcp::text_member(*function, "name") : ""}});
}

void Chat::close_calls() {
    if (!servers_) return;
    size_t results = 0;
    Conversation::Id id = conversation_.head();
    for (; id != Conversation::kRoot && conversation_.at(id).message.role == "tool"; ++results)
        id = conversation_.at(id).parent;
    if (id == Conversation::kRoot || conversation_.at(id).message.tool_calls.empty()) return;
    Json calls;
    try {
        calls = parse_json(conversation_.at(id).message.tool_calls);
    } catch (const JsonError &) {
    }
    for (; calls.is_array() && results < calls.size(); ++results)
        add_result(calls[results], "error: the chat ended before this call");
}

void Chat::mcp(const std::string &name) {
    if (!servers_) throw InputError("/mcp needs a chat that was started with --mcp FILE");
    if (name.empty()) return io_.err.try_write(servers_->overview(kResultColumns));
    const auto log = servers_->log(name);
    if (!log) throw InputError("there is no MCP server " + gguf::quoted(name));
    io_.err.try_write(text::printable_for_terminal(mcp::plain_text(*log)));
}

}  // namespace runnel::commands
