// `runnel rm`: removes models from Hugging Face's cache.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/commands/figures.h"
#include "engine/commands/models/file_names.h"
#include "engine/commands/models/hub_layout.h"
#include "engine/commands/models/pull.h"
#include "engine/commands/models/stores.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

// The blob that a file of a snapshot links to, if it is one of the repository's.
std::optional<fs::path> blob_of(const fs::path &folder, const fs::path &link) {
    std::error_code error;
    const fs::path target = fs::read_symlink(link, error);
    if (error || target.is_absolute()) return std::nullopt;
    const fs::path blob = (link.parent_path() / target).lexically_normal();
    return blob.parent_path() == (folder / "blobs").lexically_normal() ? std::optional(blob) : std::nullopt;
}

struct Removal {
    std::vector<fs::path> files;  // links, and blobs that nothing else links to
    uint64_t bytes = 0;
};

// `stem`: the stem of the model's files; nullopt: all models of the repository.
Removal plan(const fs::path &folder, const std::optional<std::string> &stem) {
    Removal removal;
    std::set<fs::path> kept, gone;
    for (const std::string &commit : hub_commits(folder))
        for (const std::string &path : snapshot_files(folder / "snapshots" / commit)) {
            const fs::path link = folder / "snapshots" / commit / path;
            const auto name = parse_file_name(path);
            const bool goes = !stem || (name && name->stem == *stem);
            if (goes) removal.files.push_back(link);
            if (const auto blob = blob_of(folder, link)) (goes ? gone : kept).insert(*blob);
        }
    for (const fs::path &blob : gone)
        if (!kept.count(blob)) removal.files.push_back(blob);
    for (const fs::path &file : removal.files) {
        std::error_code error;
        if (!fs::is_symlink(file, error) && fs::is_regular_file(file, error))
            removal.bytes += fs::file_size(file, error);
    }
    return removal;
}

// Removes a folder if it is empty, then the folders above it, up to `top`.
void remove_empty(fs::path folder, const fs::path &top) {
    std::error_code error;
    for (; folder != top && fs::remove(folder, error); folder = folder.parent_path()) {
    }
}

// Removes the files, then the repository's folder if it holds no other models and no partial downloads.
void remove_files(const fs::path &folder, const Removal &removal) {
    for (const fs::path &file : removal.files) {
        fs::remove(file);
        remove_empty(file.parent_path(), folder);
    }
    std::error_code error;
    if (fs::exists(folder / "snapshots", error) || fs::exists(folder / "blobs", error)) return;
    fs::remove(folder / "refs" / "main", error);
    fs::remove(folder / "refs", error);
    fs::remove(folder, error);
}

bool is_agreed(const std::string &question, Io &io) {
    if (!isatty(io.in)) throw UsageError(question + " Without a terminal, confirm with --yes");
    io.err.try_write(question + " [y/N] ");
    char answer[16] = {};
    const ssize_t n = read(io.in, answer, sizeof answer);
    return n > 0 && (answer[0] == 'y' || answer[0] == 'Y');
}

}  // namespace

int remove_model(const std::string &text, bool is_sure, Io &io) {
    const auto name = parse_hub_name(text);
    const auto root = hub_root();
    const fs::path folder = name && root ? *root / hub_folder(name->repo) : fs::path();
    std::error_code error;
    if (!name || !root || !fs::is_directory(folder, error) || fs::is_symlink(folder, error)) {
        const auto other = find_stored(text);
        if (other && other->store != Store::HuggingFace)
            throw UsageError(gguf::printable(text) + " belongs to " + std::string(store_name(other->store)) +
                             ", which can remove it: " + gguf::printable(other->path.native(), 4096));
        throw UsageError("no model " + gguf::quoted(text) +
                         " in Hugging Face's cache; runnel list shows the models");
    }
    for (const char *part : {"snapshots", "blobs"})
        if (fs::is_symlink(folder / part, error))
            throw UsageError(gguf::printable((folder / part).native(), 4096) +
                             " is a link: models behind links are not removed");
    std::optional<std::string> stem;
    if (!name->tag.empty() || !name->file.empty()) {
        for (const StoredModel &model : hub_models(*root, name->repo)) {
            const std::string path = model.path.lexically_relative(folder / "snapshots").generic_string();
            const std::string file = path.substr(path.find('/') + 1);
            const auto parsed = parse_file_name(file);
            const bool is_it = name->file.empty()
                                   ? model.name == text || (parsed && parsed->tag == capitals(name->tag))
                                   : file == name->file;
            if (!is_it) continue;
            if (stem) throw UsageError(gguf::printable(text) + " matches several models: name the file");
            stem = parse_file_name(file)->stem;
        }
        if (!stem)
            throw UsageError("no model " + gguf::quoted(text) +
                             " in the cache; runnel list shows the models");
    }
    const Removal removal = plan(folder, stem);
    const std::string size = size_text(removal.bytes, 1);
    const std::string what =
        gguf::printable(stem ? name->repo + "/" + *stem : name->repo + " with all its files", 300);
    if (!is_sure && !is_agreed("remove " + what + ", " + size + "?", io)) {
        io.note("nothing was removed");
        return exit_code::kFailed;
    }
    try {
        if (!stem) {
            fs::remove_all(folder);  // does not follow links
        } else {
            remove_files(folder, plan(folder, stem));  // as it is now, after the question
        }
    } catch (const fs::filesystem_error &failed) {
        throw OutputError("cannot remove " + gguf::printable(failed.path1().native(), 4096) + ": " +
                          failed.code().message());
    }
    io.note("removed " + what + ": " + size);
    return exit_code::kDone;
}

}  // namespace runnel::commands
