#include "engine/commands/chat/mcp/connection.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "engine/text/utf8.h"
#include "gguf/printable.h"

namespace runnel::commands::mcp {
namespace {

using Kind = ServerError::Kind;
using std::chrono::milliseconds;

constexpr size_t kRead = size_t{1} << 16;
constexpr size_t kMostUnread = size_t{1} << 20;  // bytes that a server has not read yet
constexpr int kSliceMilliseconds = 50;           // how long a stop may go unnoticed
constexpr milliseconds kEndingTime{500};         // wait for a server's exit after the end of its stdout
constexpr int kMethodNotFound = -32601;

std::string valid_utf8(std::string_view text) {
    text::Utf8Stream stream;
    return stream.push(text) + stream.flush();
}

std::string error_text(const Json &error) {
    const Json *message = text::find_member(error, "message"), *code = text::find_member(error, "code");
    std::string text =
        message && message->is_string() ? message->get<std::string>() : std::string("it gave no reason");
    if (code && code->is_number_integer()) text += " (error " + code->dump() + ")";
    return text;
}

}  // namespace

void Connection::broken(const std::string &why) {
    if (why_broken_.empty()) why_broken_ = why;
    process_.close_input();
    throw ServerError(Kind::Broken, why_broken_);
}

void Connection::queue(const Json &message) {
    out_ += dump(message);
}

int64_t Connection::send(const std::string &method, const Json &parameters) {
    if (out_.size() > kMostUnread) broken("the server does not read its input");
    const int64_t id = ++last_;
    sent_[id] = nullptr;
    queue({{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", parameters}});
    if (why_broken_.empty()) write_some();
    return id;
}

void Connection::notify(const std::string &method, const Json &parameters) {
    queue({{"jsonrpc", "2.0"}, {"method", method}, {"params", parameters}});
    if (why_broken_.empty()) write_some();
}

Json Connection::wait(int64_t request, base::Clock::time_point until, const decode::StopRequest &stop) {
    if (!why_broken_.empty()) throw ServerError(Kind::Broken, why_broken_);
    const auto give_up = [&](Kind kind, const std::string &why) {
        sent_.erase(request);
        notify("notifications/cancelled", {{"requestId", request}, {"reason", why}});
        throw ServerError(kind, why);
    };
    while (sent_.at(request).is_null()) {
        if (stop.requested()) give_up(Kind::Stopped, "stopped by the user");
        const auto left = std::chrono::ceil<milliseconds>(until - base::Clock::now()).count();
        exchange(static_cast<int>(std::clamp<int64_t>(left, 0, kSliceMilliseconds)));
        // Check the time only after reading: an answer that arrived in time counts even if this thread was delayed.
        if (left <= 0 && sent_.at(request).is_null()) give_up(Kind::TimedOut, "no answer in time");
    }
    return take_result(request);
}

std::optional<Json> Connection::poll(int64_t request, int milliseconds) {
    if (!why_broken_.empty()) throw ServerError(Kind::Broken, why_broken_);
    if (sent_.at(request).is_null()) exchange(milliseconds);
    if (sent_.at(request).is_null()) return std::nullopt;
    return take_result(request);
}

Json Connection::take_result(int64_t request) {
    const Json message = std::move(sent_.at(request));
    sent_.erase(request);
    if (const Json *error = text::find_member(message, "error"))
        throw ServerError(Kind::Refused, error_text(*error));
    const auto result = message.find("result");
    return result == message.end() ? Json() : *result;
}

void Connection::exchange(int wait) {
    std::array<pollfd, 3> ends = {pollfd{process_.output(), POLLIN, 0},
                                  {process_.errors(), POLLIN, 0},
                                  {out_.empty() ? -1 : process_.input(), POLLOUT, 0}};
    if (::poll(ends.data(), ends.size(), wait) <= 0) return;  // timeout or signal
    if (ends[2].revents != 0) write_some();
    if (ends[1].revents != 0) read_errors();
    if (ends[0].revents != 0) read_messages();
}

// An error of write() is not reported: the server has ended, and reading the end of its stdout tells why.
void Connection::write_some() {
    const ssize_t written = process_.input() < 0 ? -1 : write(process_.input(), out_.data(), out_.size());
    if (written > 0) out_.erase(0, static_cast<size_t>(written));
    if (written < 0 && errno != EAGAIN && errno != EINTR) {
        out_.clear();
        process_.close_input();
    }
}

void Connection::read_errors() {
    std::string text(kRead, '\0');
    const ssize_t got = read(process_.errors(), text.data(), text.size());
    if (got > 0)
        remember(std::string_view(text).substr(0, static_cast<size_t>(got)));
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
        process_.close_errors();
}

void Connection::read_messages() {
    const size_t before = in_.size();
    in_.resize(before + kRead);
    const ssize_t got = read(process_.output(), in_.data() + before, kRead);
    in_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        read_errors();
        const auto ending = process_.ending(kEndingTime);
        broken(ending ? "the server ended with " + *ending : "the server closed its output");
    }
    size_t begin = 0;
    for (size_t end; (end = in_.find('\n', std::max(begin, searched_))) != in_.npos; begin = end + 1)
        take_line(std::string_view(in_).substr(begin, end - begin));
    in_.erase(0, begin);
    searched_ = in_.size();
    if (in_.size() > kLongestLine)
        broken("the server wrote a line of more than " + std::to_string(kLongestLine >> 20) + " MiB");
}

void Connection::take_line(std::string_view line) {
    if (line.find_first_not_of(" \t\r") == line.npos) return;
    try {
        const Json json = parse_json(text::is_valid_utf8(line) ? std::string(line) : valid_utf8(line));
        if (json.is_array())  // protocol 2025-03-26 has batches
            for (const Json &message : json) take_message(message);
        else
            take_message(json);
    } catch (const JsonError &error) {
        if (error.kind != JsonError::Kind::Syntax)
            broken(std::string("the server wrote a message that is too large: ") + error.what());
        remember(std::string(line.substr(0, kLogBytes)) + "\n");
        if (++noise_ > kMostNoise)
            broken("the server writes lines that are not JSON, as '" + gguf::printable(line, 60) + "'");
    }
}

void Connection::take_message(const Json &message) {
    const Json *method = text::find_member(message, "method"), *id = text::find_member(message, "id");
    if (method && id) {
        Json answer = {{"jsonrpc", "2.0"}, {"id", *id}};
        if (*method == "ping")
            answer["result"] = Json::object();
        else
            answer["error"] = {{"code", kMethodNotFound}, {"message", "runnel does not offer this"}};
        queue(answer);
        if (out_.size() > kMostUnread) broken("the server does not read its input");
    } else if (method) {
        tools_changed_ |= *method == "notifications/tools/list_changed";
    } else if (id && id->is_number_integer()) {
        const auto request = sent_.find(id->get<int64_t>());
        const bool is_answer = message.contains("result") || message.contains("error");
        if (request != sent_.end() && is_answer) request->second = message;
    }
}

void Connection::remember(std::string_view text) {
    log_ += text;
    if (log_.size() > kLogBytes) log_.erase(0, log_.size() - kLogBytes);
}

const std::string &Connection::log() {
    if (process_.errors() >= 0) read_errors();
    return log_;
}

}  // namespace runnel::commands::mcp
