#include "engine/commands/models/hub_layout.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr size_t kMostEntries = 10'000;
constexpr int kMostFolders = 16;

bool is_name(std::string_view text) {
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    return !text.empty() && text.size() <= 96 && is_word(text.front()) && is_word(text.back()) &&
           text.find("--") == text.npos && text.find("..") == text.npos &&
           std::ranges::all_of(text, [&](char c) { return is_word(c) || c == '-' || c == '.'; });
}

// The commit in a file of refs/; empty if there is none.
std::string commit_in(const fs::path &file) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) return "";
    std::string text(64, '\0');
    std::ifstream in(file, std::ios::binary);
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    return is_hex(text, 40) ? text : "";
}

}  // namespace

bool is_repo_name(std::string_view text) {
    const size_t slash = text.find('/');
    return slash != text.npos && is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1));
}

std::string hub_folder(const std::string &repo) {
    std::string folder(kPrefix);
    for (const char c : repo) folder += c == '/' ? std::string("--") : std::string(1, c);
    return folder;
}

std::optional<std::string> hub_repo(const std::string &folder) {
    if (!folder.starts_with(kPrefix)) return std::nullopt;
    std::string repo = folder.substr(kPrefix.size());
    const size_t separator = repo.find("--");
    if (separator == std::string::npos) return std::nullopt;
    repo.replace(separator, 2, "/");
    return is_repo_name(repo) ? std::optional(repo) : std::nullopt;
}

bool is_hex(std::string_view text, size_t digits) {
    return text.size() == digits &&
           std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_safe_path(std::string_view path) {
    if (path.empty() || path.size() > 1024 || std::ranges::count(path, '/') > kMostFolders) return false;
    for (const char c : path)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
    for (size_t from = 0; from <= path.size();) {
        const size_t slash = std::min(path.find('/', from), path.size());
        const std::string_view part = path.substr(from, slash - from);
        if (part.empty() || part == "." || part == ".." || part.size() > 200) return false;
        from = slash + 1;
    }
    return true;
}

std::vector<std::string> hub_commits(const fs::path &folder) {
    std::vector<std::string> commits;
    std::error_code error;
    size_t seen = 0;
    for (fs::directory_iterator entry(folder / "snapshots", error), end;
         !error && entry != end && seen < kMostEntries; entry.increment(error), ++seen) {
        std::error_code ignored;
        const std::string name = entry->path().filename().string();
        if (is_hex(name, 40) && !entry->is_symlink(ignored)) commits.push_back(name);
    }
    std::ranges::sort(commits);
    const std::string current = commit_in(folder / "refs" / "main");
    if (const auto at = std::ranges::find(commits, current); at != commits.end())
        std::rotate(commits.begin(), at, at + 1);
    return commits;
}

std::vector<std::string> snapshot_files(const fs::path &snapshot) {
    std::vector<std::string> files;
    std::error_code error;
    size_t seen = 0;
    for (fs::recursive_directory_iterator
             entry(snapshot, fs::directory_options::skip_permission_denied, error),
         end;
         !error && entry != end && seen < kMostEntries; entry.increment(error), ++seen) {
        std::error_code ignored;
        if (entry.depth() >= kMostFolders) entry.disable_recursion_pending();
        if (entry->is_symlink(ignored) || entry->is_regular_file(ignored))
            files.push_back(entry->path().lexically_relative(snapshot).generic_string());
    }
    std::ranges::sort(files);
    return files;
}

void link_blob(const fs::path &folder, const std::string &commit, const std::string &path,
               const std::string &blob) {
    const fs::path link = folder / "snapshots" / commit / path;
    fs::create_directories(link.parent_path());
    const fs::path target = (folder / "blobs" / blob).lexically_relative(link.parent_path());
    // Create the new link under a temporary name and rename it, so that the link exists at every moment.
    const fs::path fresh = link.string() + "." + std::to_string(getpid()) + ".new";
    std::error_code ignored;
    fs::remove(fresh, ignored);
    fs::create_symlink(target, fresh);
    fs::rename(fresh, link);
}

void set_main(const fs::path &folder, const std::string &commit) {
    fs::create_directories(folder / "refs");
    const fs::path fresh = folder / "refs" / ("main." + std::to_string(getpid()) + ".new");
    std::ofstream out(fresh, std::ios::binary);
    out << commit;
    out.close();
    if (!out) throw fs::filesystem_error("cannot write", fresh, std::make_error_code(std::errc::io_error));
    fs::rename(fresh, folder / "refs" / "main");
}

}  // namespace runnel::commands
