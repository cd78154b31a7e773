// --prompt-cache: what an earlier run computed of this prompt, and what this one leaves for the next.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/decode/engine.h"
#include "engine/decode/prompt_file.h"
#include "engine/decode/sequence.h"

namespace runnel::commands {

class PromptCache {
  public:
    // Loads the file, if there is a path. All are kept. Throws UsageError for a file that is something else.
    PromptCache(const std::optional<std::string> &path, const ModelOptions &options, decode::Engine &engine,
                Io &io);

    // Saves the prompt, which is the first `prompt_tokens` of the sequence, unless the file holds just that.
    // A file that cannot be written is no reason not to answer. Does nothing the second time.
    void keep(const decode::Sequence *sequence, size_t prompt_tokens);

  private:
    const std::optional<std::string> &path_;
    decode::Engine &engine_;
    Io &io_;
    decode::Checksum::Value identity_{};
    std::vector<text::TokenId> known_;
    bool kept_ = false;
};

}  // namespace runnel::commands
