#include "engine/commands/chat/mcp/server.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/commands/chat/mcp/content.h"
#include "gguf/printable.h"

namespace runnel::commands::mcp {
namespace {

using Kind = ServerError::Kind;

// Newest first. The newest is the one that this client offers.
constexpr std::array<std::string_view, 3> kVersions = {"2025-06-18", "2025-03-26", "2024-11-05"};
constexpr size_t kMostPages = 1000;

}  // namespace

Server::Server(ServerConfig config) : config_(std::move(config)) {
    try {
        connection_ = std::make_unique<Connection>(config_);
        request_ = connection_->send("initialize", {{"protocolVersion", kVersions[0]},
                                                    {"capabilities", Json::object()},
                                                    {"clientInfo", {{"name", "runnel"}, {"version", "1"}}}});
    } catch (const StartError &error) {
        problem_ = error.what();
    }
}

void Server::go_on(int milliseconds) {
    try {
        const std::optional<Json> result = connection_->poll(request_, milliseconds);
        if (!result) return;
        if (pages_ == 0)
            take_beginning(*result);
        else
            take_tools(*result);
    } catch (const ServerError &error) {
        give_up(error.what());
    }
}

void Server::give_up(const std::string &why) {
    problem_ = why;
    connection_->close_input();
    tools_.clear();
}

void Server::take_beginning(const Json &result) {
    const std::string version = text_member(result, "protocolVersion");
    if (std::ranges::find(kVersions, version) == kVersions.end())
        throw ServerError(Kind::Broken, "it uses the protocol version " + gguf::quoted(version) +
                                            ", but runnel supports " + std::string(kVersions.back()) +
                                            " to " + std::string(kVersions[0]));
    if (const Json *info = text::find_member(result, "serverInfo"))
        title_ = plain_text(text_member(*info, "name") + " " + text_member(*info, "version"));
    connection_->notify("notifications/initialized", Json::object());
    const Json *abilities = text::find_member(result, "capabilities");
    if (abilities && text::find_member(*abilities, "tools"))
        list_tools("");
    else
        is_ready_ = true;
}

void Server::list_tools(const std::string &cursor) {
    Json parameters = Json::object();
    if (!cursor.empty()) parameters["cursor"] = cursor;
    request_ = connection_->send("tools/list", parameters);
    ++pages_;
}

void Server::take_tools(const Json &result) {
    if (const Json *list = text::find_member(result, "tools"); list && list->is_array())
        for (const Json &tool : *list) add_tool(tool);
    const std::string cursor = text_member(result, "nextCursor");
    if (cursor.empty() || tools_.size() >= kMostTools || pages_ >= kMostPages)
        is_ready_ = true;
    else
        list_tools(cursor);
}

void Server::add_tool(const Json &json) {
    constexpr size_t kMostNotes = 8;
    ToolDefinition tool{text_member(json, "name"), text_member(json, "description"), nullptr};
    if (const Json *schema = text::find_member(json, "inputSchema")) tool.schema = *schema;
    std::string problem;
    if (tool.name.empty())
        problem = "it has no name";
    else if (std::ranges::find(tools_, tool.name, &ToolDefinition::name) != tools_.end())
        problem = "the server has another tool of this name";
    else if (tools_.size() >= kMostTools)
        problem = "the server has more than " + std::to_string(kMostTools) + " tools";
    else if (tool.name.size() + tool.description.size() + dump(tool.schema).size() > kLongestDefinition)
        problem = "its definition is longer than " + std::to_string(kLongestDefinition >> 10) + " KiB";
    if (problem.empty())
        tools_.push_back(std::move(tool));
    else if (notes_.size() < kMostNotes)
        notes_.push_back("the tool " + gguf::quoted(tool.name) + " is left out: " + problem);
}

CallResult Server::call(const std::string &tool, const Json &arguments, std::chrono::milliseconds timeout,
                        const decode::StopRequest &stop) {
    using Result = CallResult::Kind;
    if (!is_ready_) return {Result::Failed, "the server is not running: " + plain_text(problem_)};
    try {
        const int64_t request = connection_->send("tools/call", {{"name", tool}, {"arguments", arguments}});
        const Json result = connection_->wait(request, base::Clock::now() + timeout, stop);
        const Json *failed = text::find_member(result, "isError");
        return {failed && *failed == true ? Result::Failed : Result::Done, result_text(result)};
    } catch (const ServerError &error) {
        switch (error.kind) {
            case Kind::Stopped:
                return {Result::Stopped, "the user stopped the call"};
            case Kind::TimedOut:
                return {Result::Failed, "no result within " + std::to_string(timeout.count() / 1000) + " s"};
            case Kind::Broken:
                is_ready_ = false;
                problem_ = error.what();
                [[fallthrough]];
            case Kind::Refused:
                break;
        }
        return {Result::Failed, plain_text(error.what())};
    }
}

}  // namespace runnel::commands::mcp
