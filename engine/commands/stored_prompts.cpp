#include "engine/commands/stored_prompts.h"

#include <cstdlib>
#include <system_error>

#include "engine/commands/arguments.h"
#include "engine/commands/chat/history_file.h"
#include "engine/decode/prompt_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

fs::path cache_home() {
    if (const char *cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/') return cache;
    if (const char *home = std::getenv("HOME"); home && *home == '/') return fs::path(home) / ".cache";
    return {};
}

}  // namespace

fs::path prompts_folder() {
    const fs::path home = keeps_history() ? cache_home() : fs::path();
    if (home.empty()) return {};
    const fs::path folder = home / "runnel" / "prompts";
    std::error_code error;
    if (fs::create_directories(folder, error)) fs::permissions(folder, fs::perms::owner_all, error);
    return fs::is_directory(folder, error) ? folder : fs::path();
}

std::string prompts_output(const PromptStoreFlags &flags) {
    const fs::path folder = flags.is_on ? prompts_folder() : fs::path();
    return folder.empty() ? std::string() : (folder / "lock").string();
}

void add_prompt_store_option(OptionTable &table, PromptStoreFlags &flags) {
    table
        .choice(
            "--prompt-cache", flags.is_on, {{"auto", true}, {"off", false}},
            "keep computed prompts of " + std::to_string(kLeastStoredTokens) +
                " tokens or more in ~/.cache/runnel/prompts, for later runs that begin with the same text")
        .by_default("auto");
    add_prompt_store_size(table, flags);
}

void add_prompt_store_size(OptionTable &table, PromptStoreFlags &flags) {
    table
        .add(
            "--prompt-cache-size", "SIZE",
            "what the prompts in that folder may take, as 800M or 4G, and at most a quarter of the free disk",
            [&flags](const std::string &text) { flags.most_bytes = byte_size(text, int64_t{1} << 50); })
        .by_default("4G")
        .rare();
}

StoredPrompts::StoredPrompts(const PromptStoreFlags &flags, const ModelOptions &options,
                             decode::Engine &engine) {
    const fs::path folder = flags.is_on ? prompts_folder() : fs::path();
    if (folder.empty()) return;
    store_.emplace(folder, static_cast<uint64_t>(flags.most_bytes),
                   decode::prompt_identity(engine.file(), engine.model().program,
                                           engine.executor().device().kind, options.cache.types),
                   engine.executor());
}

std::optional<decode::SequenceCache> StoredPrompts::load(std::span<const text::TokenId> prompt) {
    if (!store_ || prompt.size() < kLeastStoredTokens) return std::nullopt;
    is_used_ = true;
    return store_->load(prompt);
}

void StoredPrompts::save(std::span<const text::TokenId> text) {
    if (!store_ || text.size() < kLeastStoredTokens) return;
    is_used_ = true;
    store_->save(text);
}

std::optional<StoredReport> StoredPrompts::report() const {
    if (!store_ || !is_used_) return std::nullopt;
    const completion::PromptStore::Counts &counts = store_->counts();
    return StoredReport{store_->folder().native(), counts.found, counts.saved, counts.damaged, counts.removed,
                        store_->problem()};
}

std::string stored_text(const StoredReport &report) {
    std::string text = "stored   " + std::to_string(report.found) + " tokens found, " +
                       std::to_string(report.saved) + " saved in " + gguf::printable(report.folder, 4096);
    if (report.damaged > 0) text += "; " + std::to_string(report.damaged) + " damaged files removed";
    if (report.removed > 0) text += "; " + std::to_string(report.removed) + " old files removed";
    if (!report.problem.empty()) text += "; " + gguf::printable(report.problem, 4096);
    return text + "\n";
}

Json stored_json(const StoredReport &report) {
    Json json = {{"found_tokens", report.found},
                 {"saved_tokens", report.saved},
                 {"damaged_files", report.damaged},
                 {"removed_files", report.removed}};
    if (!report.problem.empty()) json["problem"] = report.problem;
    return json;
}

}  // namespace runnel::commands
