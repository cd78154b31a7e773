// The model's side of a chat: answers a conversation and keeps its sequence between the turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/chat/chat_view.h"
#include "engine/commands/chat/transcript.h"
#include "engine/commands/generation.h"
#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/commands/stored_prompts.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/speculation/drafting.h"

namespace runnel::commands {

class ChatModel {
  public:
    // All references must outlive it. `tools`: definitions of tools that the chat runs itself, besides those of
    // --tools; null: none.
    ChatModel(const ChatOptions &options, decode::Engine &engine, std::unique_ptr<decode::Drafting> drafts,
              const Json &tools, Io &io);

    // Where and how an answer is shown (chat_view.h). `watch`: called between the steps, with the view once there is one.
    struct View {
        Output &out;
        AnswerLook look;
        bool is_terminal;
        std::function<void(decode::StopRequest &stop, ChatView *view)> watch = {};
    };
    using Save = std::function<void(const text::Message &answer)>;
    // Answers the conversation, whose last message is the user's. Pieces go to `view` as they come. `save` is called
    // with the whole answer before the end of its last line is shown. `most`: limit of the answer in tokens;
    // < 0: as in the settings. Throws DecodeError: BadInput for a conversation that cannot be answered.
    text::Message answer(const Transcript &transcript, const View &view, const Save &save, int64_t most = -1);
    // Makes the next answer draw other tokens for the same conversation.
    void vary() { ++stream_; }
    uint32_t stream() const { return stream_; }
    void set_stream(uint32_t stream) { stream_ = stream; }

    // The messages that must be left out of the prompt because the context is full, under --on-overflow.
    struct Surplus {
        size_t first = 0, count = 0;  // in transcript.messages
    };
    Surplus surplus(const Transcript &transcript) const;

    // Whether the conversation is saved, which also allows to keep its cache on the disk; otherwise at most that of the
    // system prompt is kept there.
    void set_saved(bool is_saved) { is_saved_ = is_saved; }

    GenerationFlags &settings() { return settings_; }
    // Applies changes of settings(). Throws UsageError.
    void apply_settings();
    // Number of tokens of the conversation in the next prompt.
    size_t tokens_of(const Transcript &transcript) const;
    const completion::PromptFormat &format() const { return format_; }
    // Applies to all later answers. Throws std::invalid_argument if the template does not support it.
    void set_thinking(text::Thinking thinking) { format_.set_thinking(thinking); }

    // The tokens of the last answer, from the call of `save` on.
    const completion::WrittenAnswer &written() const { return written_; }
    // The statistics of the last answer.
    const std::optional<Report> &report() const { return report_; }
    bool interrupted() const { return ending_ == completion::FinishReason::Interrupt; }
    bool timed_out() const { return ending_ == completion::FinishReason::Deadline; }
    void forget_ending() { ending_.reset(); }
    // `kept`: branches whose sequences are kept. `dropped`: those of them whose cache blocks were evicted.
    struct Branches {
        size_t kept = 0, dropped = 0;
    };
    Branches branches() const;
    // Releases the kept sequences; call before another conversation.
    void forget();

  private:
    completion::Request request_of(const Transcript &transcript) const;
    completion::SequenceHandle best_for(const completion::Request &request) const;
    void keep(completion::SequenceHandle handle);
    void load_stored(const completion::Request &request);
    void save_stored(const decode::Sequence &sequence);
    void finish(const completion::Done &done);

    const ChatOptions &options_;
    decode::Engine &engine_;
    Io &io_;
    GenerationFlags settings_;
    decode::SamplingOptions sampling_;
    std::optional<grammar::Source> constraint_;
    completion::PromptFormat format_;
    std::shared_ptr<const text::ToolUse> tools_;  // null: none
    std::shared_ptr<const text::ToolUse>
        after_call_;  // for an answer to results: no call is required any more
    bool runs_calls_;
    std::unique_ptr<decode::Drafting> drafts_;  // null: none
    completion::CompletionQueue queue_;
    std::vector<completion::SequenceHandle> kept_;  // sequences of answers, the one used last at the end
    completion::WrittenAnswer written_;
    StoredPrompts stored_;
    size_t system_tokens_ = 0;  // at the beginning of the prompt
    bool is_saved_ = false;
    std::optional<Report> report_;
    uint32_t stream_ = 0;
    std::optional<completion::FinishReason> ending_;
};

}  // namespace runnel::commands
