// --prompt-cache: loads the prompt that an earlier run computed, and saves this run's prompt for the next.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/decode/prompt_file.h"

namespace runnel::commands {

class PromptCache {
  public:
    // Loads the file, if there is a path. All references must outlive it. Throws UsageError for another kind of file.
    PromptCache(const std::optional<std::string> &path, const ModelOptions &options, decode::Engine &engine,
                Io &io);

    // Saves the prompt, which is the first `prompt_tokens` of the sequence, unless the file has it already.
    // If the file cannot be written, that is only noted. A second call does nothing.
    void keep(const decode::Sequence *sequence, size_t prompt_tokens);

  private:
    const std::optional<std::string> &path_;
    decode::Engine &engine_;
    Io &io_;
    base::Checksum::Value identity_{};
    std::vector<text::TokenId> known_;
    bool kept_ = false;
};

}  // namespace runnel::commands
