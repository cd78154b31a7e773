#include "engine/commands/stored_prompts.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
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

// Raise it when a change of a kernel, of rope or of a quantizer changes K or V: older files are not found from then on.
constexpr uint32_t kNumericsVersion = 1;

// What changes when a file is replaced, by a download of the same size as well.
void add_file(const fs::path &path, base::Checksum &sum) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) return;
    for (const uint64_t value :
         {uint64_t{status.st_dev}, uint64_t{status.st_ino}, static_cast<uint64_t>(status.st_size),
          static_cast<uint64_t>(status.st_mtim.tv_sec), static_cast<uint64_t>(status.st_mtim.tv_nsec)})
        sum.add_value(value);
}

// Of the files of a model, besides what prompt_identity() reads of them.
base::Checksum::Value store_identity(const gguf::File &file, base::Checksum::Value identity) {
    base::Checksum sum;
    sum.add_value(identity);
    sum.add_value(kNumericsVersion);
    constexpr size_t kEnding = sizeof "00001-of-00003.gguf" - 1, kDigits = 5;
    fs::path path = file.path();
    std::string name = path.filename().native();
    for (size_t part = 1; part <= file.parts(); ++part) {
        if (file.parts() > 1 && name.size() > kEnding) {
            char digits[24];
            std::snprintf(digits, sizeof digits, "%05zu", part);
            name.replace(name.size() - kEnding, kDigits, digits);
            path.replace_filename(name);
        }
        add_file(path, sum);
    }
    return sum.value();
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
    table.choice(
        "--prompt-cache", flags.is_on, {{"auto", true}, {"off", false}},
        "auto: keep computed prompts of " + std::to_string(kLeastStoredTokens) +
            " tokens or more in ~/.cache/runnel/prompts, for later runs that begin with the same text");
    add_prompt_store_size(table, flags);
}

void add_prompt_store_size(OptionTable &table, PromptStoreFlags &flags) {
    table
        .add("--prompt-cache-size", "SIZE",
             "size limit of that folder, such as 800M or 4G; never more than a quarter of the free disk",
             [&flags](const std::string &text) { flags.most_bytes = byte_size(text, int64_t{1} << 50); })
        .by_default("4G")
        .rare();
}

StoredPrompts::StoredPrompts(const PromptStoreFlags &flags, const ModelOptions &options,
                             decode::Engine &engine) try {
    const fs::path folder = flags.is_on ? prompts_folder() : fs::path();
    if (folder.empty()) return;
    const auto identity = decode::prompt_identity(engine.file(), engine.model().program,
                                                  engine.executor().device().kind, options.cache.types);
    store_.emplace(folder, static_cast<uint64_t>(flags.most_bytes), store_identity(engine.file(), identity),
                   engine.executor());
} catch (const std::exception &error) {
    problem_ = error.what();
}

std::optional<decode::SequenceCache> StoredPrompts::load(std::span<const text::TokenId> prompt) try {
    if (!is_on() || prompt.size() < kLeastStoredTokens) return std::nullopt;
    is_used_ = true;
    return store_->load(prompt);
} catch (const std::exception &error) {
    problem_ = error.what();
    return std::nullopt;
}

void StoredPrompts::save(std::span<const text::TokenId> text) try {
    if (!is_on() || text.size() < kLeastStoredTokens) return;
    is_used_ = true;
    store_->save(text);
} catch (const std::exception &error) {
    problem_ = error.what();
}

void StoredPrompts::save_to_the_token(std::span<const text::TokenId> text) try {
    if (!is_on() || text.size() < kLeastStoredTokens) return;
    is_used_ = true;
    store_->save_to_the_token(text);
} catch (const std::exception &error) {
    problem_ = error.what();
}

std::optional<StoredReport> StoredPrompts::report() const {
    if (!store_ || !is_used_) return std::nullopt;
    const completion::PromptStore::Counts &counts = store_->counts();
    return StoredReport{store_->folder().native(),
                        counts.found,
                        counts.saved,
                        counts.damaged,
                        counts.removed,
                        problem_.empty() ? store_->problem() : problem_};
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
