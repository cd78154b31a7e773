// Divides an answer's text among its channels: reasoning, answer, tool calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/completion/event.h"
#include "engine/text/reasoning.h"
#include "engine/text/tool_calls/parse.h"

namespace runnel::completion {

// Copies are independent.
class TextChannels {
  public:
    // Without a splitter, all text is the answer's.
    explicit TextChannels(std::optional<text::ReasoningSplitter> splitter = {})
        : splitter_(std::move(splitter)) {}
    // Looks for calls of these tools, too. The format must outlive it.
    void find_calls(const text::ToolFormat &format, std::shared_ptr<const text::ToolUse> tools,
                    uint64_t salt) {
        tools_ = std::move(tools);
        calls_.emplace(format, *tools_, salt);
    }
    // Whether the answer may be plain text although tools are offered.
    bool may_be_text() const { return tools_ && tools_->choice == text::ToolUse::Choice::Auto; }

    // Appends the pieces that are certain now; the token is in exactly one of them, with or without text. At the
    // end of the text (`over`), stores the tool calls in `of`.
    void push(Done &of, TokenId token, const std::string &text, bool over, std::vector<Event> &events);

  private:
    std::optional<text::ReasoningSplitter> splitter_;
    std::shared_ptr<const text::ToolUse> tools_;  // calls_ refers to them
    std::optional<text::ToolCallSplitter> calls_;
};

}  // namespace runnel::completion
