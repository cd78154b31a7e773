// The beginning that the prompts of a batch share, which is kept on the disk (stored_prompts.h).
#pragma once

#include <optional>
#include <vector>

#include "engine/commands/options.h"
#include "engine/commands/stored_prompts.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

class SharedPrompt {
  public:
    // The references must outlive it.
    SharedPrompt(const BatchOptions &options, decode::Engine &engine, const completion::PromptFormat &format)
        : engine_(engine), format_(format), stored_(options.store, options.model, engine) {}

    // A row that will be submitted. Before the first one, loads what is stored of its prompt.
    void add(const completion::Request &request);
    // Once an answer is done: saves the beginning that all rows have shared until now, if there are two. Does nothing
    // after it has saved.
    void save();

    const StoredPrompts &stored() const { return stored_; }

  private:
    decode::Engine &engine_;
    const completion::PromptFormat &format_;
    StoredPrompts stored_;
    std::optional<std::vector<text::TokenId>> shared_;  // nullopt: no row yet
    bool is_shared_ = false;                            // by two rows or more
    bool is_over_ = false;                              // saved, or too short
};

}  // namespace runnel::commands
