// The model's side of a chat: answers a conversation and keeps its sequence between the turns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/commands/chat/transcript.h"
#include "engine/commands/generation.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/drafting.h"

namespace runnel::commands {

class ChatModel {
  public:
    // Keeps all references.
    ChatModel(const ChatOptions &options, decode::Engine &engine, std::unique_ptr<decode::Drafting> drafts,
              Io &io);

    // Answers the conversation, whose last message is the user's. Removes old turns for which the context has
    // no room. Pieces go to stdout as they come; `color`, `shows_reasoning`: chat_view.h. Throws DecodeError:
    // BadInput for a conversation that cannot be answered.
    text::Message answer(Transcript &transcript, bool color, bool shows_reasoning, bool is_terminal);
    // The next answer draws other tokens for the same conversation.
    void vary() { ++stream_; }

    GenerationFlags &settings() { return settings_; }
    // Applies changes of settings(). Throws UsageError.
    void apply_settings();
    // Number of tokens of the conversation in the next prompt.
    size_t tokens_of(const Transcript &transcript) const;
    const completion::PromptFormat &format() const { return format_; }
    // For all later answers. Throws std::invalid_argument if the template does not support it.
    void set_thinking(text::Thinking thinking) { format_.set_thinking(thinking); }

    // Of the last answer.
    const std::optional<Report> &report() const { return report_; }
    bool interrupted() const { return interrupted_; }

  private:
    void make_room(Transcript &transcript) const;
    completion::Request request_of(const Transcript &transcript) const;
    void finish(const completion::Done &done);

    const ChatOptions &options_;
    decode::Engine &engine_;
    Io &io_;
    GenerationFlags settings_;
    decode::SamplingOptions sampling_;
    std::optional<grammar::Source> constraint_;
    completion::PromptFormat format_;
    std::shared_ptr<const text::ToolUse> tools_;  // or none
    std::unique_ptr<decode::Drafting> drafts_;    // or none
    completion::CompletionQueue queue_;
    completion::SequenceHandle kept_ = completion::kNoSequence;  // of the last answer
    std::optional<Report> report_;
    uint32_t stream_ = 0;
    bool interrupted_ = false;
};

}  // namespace runnel::commands
