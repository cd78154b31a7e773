#include "engine/commands/chat/conversation_text.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include "engine/commands/chat/edit/cells.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using Id = Conversation::Id;

constexpr size_t kMostIndent = 48;  // in bytes; deeper forks are not indented further

std::string summary_line(const Conversation &talk, Id id) {
    const Conversation::Node &node = talk.at(id);
    if (node.is_summary && !node.hides.empty())
        return "(summary of " + std::to_string(node.hides.size()) + " messages)";
    const std::string &text = node.message.content;
    const std::string shown = text.empty() && !node.message.tool_calls.empty() ? "(tool call)" : text;
    return (node.message.role == "user" ? "> " : "") + shown;
}

std::string age(int64_t seconds) {
    const std::pair<int64_t, const char *> kUnits[] = {{86400, " d"}, {3600, " h"}, {60, " min"}};
    for (const auto &[length, unit] : kUnits)
        if (seconds >= length) return std::to_string(seconds / length) + unit;
    return "now";
}

}  // namespace

std::string clipboard_sequence(std::string_view text) {
    static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string base64;
    for (size_t i = 0; i < text.size(); i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; ++k)
            bits = bits << 8 | (i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u);
        for (size_t k = 0; k < 4; ++k)
            base64 += i + k <= text.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
    return "\x1b]52;c;" + base64 + "\x07";
}

std::string clipped(std::string_view text, size_t columns) {
    std::string line(text.substr(0, 8 * columns));
    for (char &c : line)
        if (c == '\n' || c == '\t' || c == '\r') c = ' ';
    line = gguf::printable(line, 8 * columns);
    size_t used = 0, end = 0, room = 0;  // `room`: the longest end after which "..." still fits
    while (end < line.size()) {
        const size_t bytes = first_grapheme(std::string_view(line).substr(end));
        used += static_cast<size_t>(grapheme_width(std::string_view(line).substr(end, bytes)));
        if (used > columns) return line.substr(0, room) + "...";
        end += bytes;
        if (used + 3 <= columns) room = end;
    }
    return line;
}

std::string tree_text(const Conversation &talk, size_t columns, bool ascii) {
    const std::vector<Id> chain = talk.chain(talk.head());
    const std::set<Id> path(chain.begin(), chain.end());
    struct Task {
        Id id;
        std::string before;  // the lines of the forks above
        bool is_branch, is_last;
    };
    std::vector<Task> tasks;
    // A stack: the first child is drawn first. A message without siblings stays in its parent's column.
    const auto push_children = [&](Id id, const std::string &before) {
        const std::vector<Id> &children = talk.at(id).children;
        for (size_t i = children.size(); i-- > 0;)
            tasks.push_back({children[i], before, children.size() > 1, i + 1 == children.size()});
    };
    push_children(Conversation::kRoot, "");
    const size_t digits = std::to_string(talk.size()).size();
    std::string text;
    while (!tasks.empty()) {
        const Task task = std::move(tasks.back());
        tasks.pop_back();
        std::string number = std::to_string(task.id);
        number.insert(0, digits - std::min(digits, number.size()), ' ');
        const bool is_deep = task.before.size() > kMostIndent;
        const char *fork = !task.is_branch ? ""
                           : ascii         ? (task.is_last ? "`- " : "|- ")
                                           : (task.is_last ? "\u2514\u2500 " : "\u251c\u2500 ");
        const char *below = !task.is_branch || is_deep ? ""
                            : task.is_last             ? "   "
                            : ascii                    ? "|  "
                                                       : "\u2502  ";
        std::string line = (path.count(task.id) ? "*" : " ") + number + " " + task.before + fork;
        const auto used = static_cast<size_t>(text_width(line));
        text +=
            line + clipped(summary_line(talk, task.id), std::max<size_t>(columns, used + 8) - used) + "\n";
        push_children(task.id, task.before + below);
    }
    return text;
}

std::string markdown(const Conversation &talk) {
    std::string text = "# " + (talk.title().empty() ? "Chat" : clipped(talk.title(), 200)) + "\n";
    if (!talk.system().empty()) text += "\n## System\n\n" + talk.system() + "\n";
    for (const Id id : talk.chain(talk.head())) {
        const text::Message &message = talk.at(id).message;
        const bool is_user = message.role == "user", is_answer = message.role == "assistant";
        text += "\n## " + (is_user ? "You" : is_answer ? "Answer" : clipped(message.role, 40)) + "\n\n";
        if (!message.reasoning.empty())
            text += "<details><summary>Reasoning</summary>\n\n" + message.reasoning + "\n\n</details>\n\n";
        if (!message.tool_calls.empty()) text += "```json\n" + message.tool_calls + "\n```\n";
        if (!message.content.empty()) text += message.content + (message.content.ends_with('\n') ? "" : "\n");
    }
    return text;
}

std::string list_text(std::span<const SavedChat> chats, const std::filesystem::path &open, size_t columns) {
    std::string text;
    for (size_t i = 0; i < chats.size(); ++i) {
        const SavedChat &chat = chats[i];
        char left[64];
        std::snprintf(left, sizeof left, "%c%3zu %8s %4zu messages  ", chat.path == open ? '*' : ' ', i + 1,
                      age(chat.seconds).c_str(), chat.messages);
        const std::string model = clipped(std::filesystem::path(chat.model).filename().string(), 24);
        std::string title =
            clipped(chat.title, columns - std::min(columns - 20, std::string_view(left).size() + 26));
        text += left + title + "  (" + model + ")\n";
    }
    return text;
}

}  // namespace runnel::commands
