// A conversation as a tree of messages: a regenerated answer and an edited message stay in the tree, as
// siblings of their replacements. The head is the message that the next one follows.
//
// Every change is also an entry, a JSON object; a saved chat (chat_file.h) is the list of its entries:
//   {"system": "..."}  {"title": "..."}
//   {"id": 2, "parent": 1, "role": "assistant", "content": "..."}   the new head
//   {"head": 1}                                                     another head
// Optional members of a message: "reasoning_content", "tool_calls", "tool_call_id", "name", "hides" (ids of messages
// that the prompt leaves out from here on), "summary": true, "stream" (of the sampler's noise) and "written": {"after":
// [bytes, sum, sum], "tokens": [ids]} (completion/written_answer.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/commands/chat/transcript.h"
#include "engine/commands/json.h"

namespace runnel::commands {

class Conversation {
  public:
    using Id = int64_t;
    static constexpr Id kRoot = 0;  // before the first message

    struct Node {
        text::Message message{};
        std::vector<Id> hides{};              // messages that the prompt leaves out from here on
        bool is_summary = false;              // of hidden messages; the prompt begins with it
        uint32_t stream = 0;                  // for an answer: the stream of the sampler's noise
        completion::WrittenAnswer written{};  // for an answer: its tokens
        Id parent = kRoot;                    // the members below are set by add()
        std::vector<Id> children{};
        Id recent = kRoot;  // the child that was last on the path to the head
    };
    using Record = std::function<void(const Json &entry)>;

    // `record` is called with the entry of every change.
    explicit Conversation(Record record = {}) : record_(std::move(record)) { nodes_[kRoot]; }

    const std::string &system() const { return system_; }
    const std::string &title() const { return title_; }
    void set_system(const std::string &text);
    void set_title(const std::string &text);

    // Adds a message after the head; it becomes the head.
    Id add(Node node);
    // Makes `id` the head. Precondition: has(id).
    void go(Id id);
    // As go(), but without an entry: a saved chat keeps the old head until the next change.
    void visit(Id id);

    bool has(Id id) const { return nodes_.count(id) > 0; }
    const Node &at(Id id) const { return nodes_.at(id); }
    Id head() const { return head_; }
    size_t size() const { return nodes_.size() - 1; }
    // The path to `id`: the messages before it and its own, from the first on.
    std::vector<Id> chain(Id id) const;
    // The messages of the prompt: summaries first, then chain(head()) without hidden messages.
    std::vector<Id> visible() const;
    // The prompt, without the messages in `hidden`.
    Transcript transcript(const std::vector<Id> &hidden = {}) const;
    // The prompt that would result if `message` followed the head.
    Transcript transcript_with(const std::string &message) const;
    // The user's message at the head or the nearest before it; kRoot if there is none.
    Id last_question() const;
    // Goes from `id` to the child that the head's path used last, and so on to the end; `id` if it has no
    // children.
    Id end_of(Id id) const;
    // The nearest message at or before the head that has siblings, and its next sibling in the direction of
    // `step` (1 or -1), which is kRoot if there is none.
    struct Fork {
        Id at = kRoot, next = kRoot;
        size_t number = 0, count = 0;  // of `next` among its siblings, from 1 on
    };
    Fork fork(int step) const;

    // Applies an entry of a file. If it does not fit, throws InputError and changes nothing.
    void apply(const Json &entry);
    // The entries that make this conversation.
    std::vector<Json> entries() const;

  private:
    void insert(Id id, Node node);
    static Json entry_of(Id id, const Node &node);
    void record(const Json &entry) const {
        if (record_) record_(entry);
    }

    Record record_;
    std::string system_, title_;
    std::map<Id, Node> nodes_;
    Id head_ = kRoot;
};

}  // namespace runnel::commands
