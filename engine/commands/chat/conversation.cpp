#include "engine/commands/chat/conversation.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/commands/io.h"

namespace runnel::commands {
namespace {

using Id = Conversation::Id;

// Larger ids are refused: no chat file has that many lines.
constexpr Id kMostIds = Id{1} << 40;

// An id in a file; -1: there is none.
Id id_in(const Json &entry, std::string_view key) {
    const Json *value = text::find_member(entry, key);
    if (!value) return -1;
    if (!value->is_number_integer() || *value < 0 || *value > kMostIds)
        throw InputError("\"" + std::string(key) + "\" is not the number of a message");
    return value->get<Id>();
}

std::string text_in(const Json &value, const char *key) {
    if (!value.is_string()) throw InputError(std::string("\"") + key + "\" is not a string");
    return value.get<std::string>();
}

// The tokens of an answer; none if the entry has no valid ones. (Before use, they are compared with the text.)
completion::WrittenAnswer written_in(const Json &entry) try {
    const Json *written = text::find_member(entry, "written");
    if (!written) return {};
    completion::WrittenAnswer answer;
    const auto number = [&](size_t i) {
        const Json &value = written->at("after").at(i);
        return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
    };
    answer.after = {number(0), {number(1), number(2)}};
    for (const Json &id : written->at("tokens")) {
        if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return {};
        answer.tokens.push_back(id.get<text::TokenId>());
    }
    return answer;
} catch (const Json::exception &) {
    return {};
}

}  // namespace

void Conversation::set_system(const std::string &text) {
    system_ = text;
    record({{"system", text}});
}

void Conversation::set_title(const std::string &text) {
    title_ = text;
    record({{"title", text}});
}

Json Conversation::entry_of(Id id, const Node &node) {
    Json entry = {{"id", id}, {"parent", node.parent}};
    entry.update(message_json(node.message));
    if (!node.hides.empty()) entry["hides"] = node.hides;
    if (node.is_summary) entry["summary"] = true;
    if (node.stream != 0) entry["stream"] = node.stream;
    if (const auto &[after, tokens] = node.written; !tokens.empty())
        entry["written"] = {{"after", {after.bytes, after.sum[0], after.sum[1]}}, {"tokens", tokens}};
    return entry;
}

void Conversation::insert(Id id, Node node) {
    const Id parent = node.parent;
    nodes_.at(parent).children.push_back(id);
    nodes_[id] = std::move(node);
    if (parent != head_) return visit(id);
    nodes_.at(parent).recent = id;  // the nodes above already lead to this parent
    head_ = id;
}

Id Conversation::add(Node node) {
    const Id id = nodes_.rbegin()->first + 1;
    node.parent = head_;
    node.children.clear();
    node.recent = kRoot;
    insert(id, std::move(node));
    record(entry_of(id, at(id)));
    return id;
}

void Conversation::visit(Id id) {
    head_ = id;
    while (id != kRoot) {
        const Id parent = at(id).parent;
        nodes_.at(parent).recent = id;
        id = parent;
    }
}

void Conversation::go(Id id) {
    if (id == head_) return;
    visit(id);
    record({{"head", id}});
}

std::vector<Id> Conversation::chain(Id id) const {
    std::vector<Id> ids;
    for (; id != kRoot; id = at(id).parent) ids.push_back(id);
    std::reverse(ids.begin(), ids.end());
    return ids;
}

std::vector<Id> Conversation::visible() const {
    std::vector<Id> ids = chain(head_);
    std::set<Id> hidden;
    for (const Id id : ids) hidden.insert(at(id).hides.begin(), at(id).hides.end());
    std::erase_if(ids, [&](Id id) { return hidden.count(id) > 0; });
    std::stable_partition(ids.begin(), ids.end(), [&](Id id) { return at(id).is_summary; });
    return ids;
}

Transcript Conversation::transcript(const std::vector<Id> &hidden) const {
    Transcript result{system_, {}};
    for (const Id id : visible()) {
        if (std::find(hidden.begin(), hidden.end(), id) != hidden.end()) continue;
        result.messages.push_back(at(id).message);
        if (!at(id).written.tokens.empty()) result.written.push_back(at(id).written);
    }
    return result;
}

Transcript Conversation::transcript_with(const std::string &message) const {
    Transcript result = transcript();
    result.messages.push_back({"user", message});
    return result;
}

Id Conversation::last_question() const {
    Id id = head_;
    while (id != kRoot && at(id).message.role != "user") id = at(id).parent;
    return id;
}

Id Conversation::end_of(Id id) const {
    while (at(id).recent != kRoot) id = at(id).recent;
    return id;
}

Conversation::Fork Conversation::fork(int step) const {
    for (Id id = head_; id != kRoot; id = at(id).parent) {
        const std::vector<Id> &row = at(at(id).parent).children;
        if (row.size() < 2) continue;
        const auto here = std::find(row.begin(), row.end(), id) - row.begin();
        const auto next = here + step;
        const bool is_there = next >= 0 && next < static_cast<std::ptrdiff_t>(row.size());
        return {id, is_there ? row[static_cast<size_t>(next)] : kRoot, static_cast<size_t>(next + 1),
                row.size()};
    }
    return {};
}

void Conversation::apply(const Json &entry) {
    if (const Json *text = text::find_member(entry, "system")) {
        system_ = text_in(*text, "system");
    } else if (const Json *title = text::find_member(entry, "title")) {
        title_ = text_in(*title, "title");
    } else if (const Id head = id_in(entry, "head"); head >= 0) {
        if (!has(head)) throw InputError("there is no message " + std::to_string(head));
        visit(head);
    } else if (const Id id = id_in(entry, "id"); id >= 0) {
        Node node;
        node.message = message_from(entry, static_cast<size_t>(id));
        node.parent = id_in(entry, "parent");
        if (id <= nodes_.rbegin()->first || !has(node.parent))
            throw InputError("message " + std::to_string(id) + " is out of order, or its parent is missing");
        if (const Json *hides = text::find_member(entry, "hides"); hides && hides->is_array())
            for (const Json &hidden : *hides)
                if (hidden.is_number_integer() && hidden >= 0 && hidden < id)
                    node.hides.push_back(hidden.get<Id>());
        if (const Json *summary = text::find_member(entry, "summary"))
            node.is_summary = summary->is_boolean() && summary->get<bool>();
        if (const Json *stream = text::find_member(entry, "stream");
            stream && stream->is_number_integer() && *stream >= 0 && *stream <= UINT32_MAX)
            node.stream = stream->get<uint32_t>();
        node.written = written_in(entry);
        insert(id, std::move(node));
    } else {
        throw InputError("not an entry of a chat");
    }
}

std::vector<Json> Conversation::entries() const {
    std::vector<Json> all;
    if (!system_.empty()) all.push_back({{"system", system_}});
    if (!title_.empty()) all.push_back({{"title", title_}});
    for (const auto &[id, node] : nodes_)
        if (id != kRoot) all.push_back(entry_of(id, node));
    if (size() > 0) all.push_back({{"head", head_}});
    return all;
}

}  // namespace runnel::commands
