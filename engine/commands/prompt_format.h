// The prompt format that the flags and the model's file select.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/completion/event.h"
#include "engine/completion/prompt.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

// `more`: definitions of tools besides those of --tools, or null. Throws UsageError for a contradictory or invalid
// option, InputError for a template or tool definitions that cannot be used.
completion::PromptFormat prompt_format(const decode::Engine &engine, const TemplateFlags &flags,
                                       const Json &more = nullptr);
// The tools of --tools and `more`, with the choice of --tool-choice; null if there are none. Writes a note for each
// tool that cannot be called. Throws UsageError and InputError.
std::shared_ptr<const text::ToolUse> tool_use(const TemplateFlags &flags,
                                              const completion::PromptFormat &format, Io &io,
                                              const Json &more = nullptr);
// Throws UsageError if template flags are given without a template or with --raw.
void expect_template(const completion::PromptFormat &format, const TemplateFlags &flags, bool raw);
// Writes a note for each template flag that has no effect with this model.
void note_unused(const TemplateFlags &flags, const completion::PromptFormat &format, Io &io);

// The system prompt of --system or --system-file; empty when there is none. Throws UsageError for both.
std::string system_prompt(const std::optional<std::string> &text, const std::optional<std::string> &file,
                          int in, const decode::StopRequest *stop = nullptr);

// Converts an answer's pieces to text: omits the reasoning, or puts it between its marks.
class AnswerText {
  public:
    AnswerText(const completion::PromptFormat &format, bool show_thinking)
        : format_(&format), show_thinking_(show_thinking) {}

    // The text to show for a piece, and at the end of the answer.
    std::string add(const completion::Piece &piece);
    std::string end() const { return inside_ && show_thinking_ ? "\n" : ""; }
    const std::string &reasoning() const { return reasoning_; }
    // Whether there was text other than reasoning.
    bool began() const { return began_; }

  private:
    const completion::PromptFormat *format_;
    bool show_thinking_;
    std::string reasoning_;
    bool inside_ = false, began_ = false;
};

}  // namespace runnel::commands
