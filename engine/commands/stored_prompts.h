// --prompt-cache auto: computed prompts in the user's cache folder (completion/prompt_store.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "engine/commands/cli/option.h"
#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/completion/prompt_store.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

// Shorter prompts are neither looked for nor saved.
inline constexpr size_t kLeastStoredTokens = 1024;

// $XDG_CACHE_HOME/runnel/prompts, by default ~/.cache/runnel/prompts; creates it. Empty without such a folder, and
// with RUNNEL_NO_HISTORY=1 in the environment.
std::filesystem::path prompts_folder();
// A path for the outputs of a sandbox that allows the use of the folder; "" if none is used.
std::string prompts_output(const PromptStoreFlags &flags);

// --prompt-cache auto|off
void add_prompt_store_option(OptionTable &table, PromptStoreFlags &flags);
// --prompt-cache-size
void add_prompt_store_size(OptionTable &table, PromptStoreFlags &flags);

class StoredPrompts {
  public:
    // The engine must outlive it. No error of the folder or its files ends a run: report() says what failed.
    StoredPrompts(const PromptStoreFlags &flags, const ModelOptions &options, decode::Engine &engine);

    bool is_on() const { return store_ && problem_.empty(); }
    // Brings what is stored of a prompt into the cache, if the prompt is long enough: as a sequence, and for all others
    // in whole blocks.
    std::optional<decode::SequenceCache> load(std::span<const text::TokenId> prompt);
    // Saves what the cache holds of a text, if that is long enough. The last token is not saved.
    void save(std::span<const text::TokenId> text);
    // As save(), but to the last token: see PromptStore::save_to_the_token().
    void save_to_the_token(std::span<const text::TokenId> text);

    // For statistics: what was found and saved; nullopt if it is off or no text was long enough.
    std::optional<StoredReport> report() const;
    // Tokens that saving itself took from the cache, which no answer reused.
    int64_t attached() const { return store_ ? store_->counts().attached : 0; }

  private:
    std::optional<completion::PromptStore> store_;
    std::string problem_;
    bool is_used_ = false;
};

std::string stored_text(const StoredReport &report);  // a line
Json stored_json(const StoredReport &report);

}  // namespace runnel::commands
