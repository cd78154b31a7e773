// Hugging Face's cache on disk, as its Python library and llama.cpp use it:
//
//   ROOT/models--USER--REPO/blobs/SHA256              the content (small files: their git hash)
//   ROOT/models--USER--REPO/snapshots/COMMIT/PATH     a relative link to a blob
//   ROOT/models--USER--REPO/refs/main                 COMMIT
//   ROOT/.locks/models--USER--REPO/SHA256.lock        held with flock() during a download
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

// "USER/REPO": each has at most 96 letters, digits and "-._", without "--", "..", or "-" and "." at its ends.
bool is_repo_name(std::string_view text);
// "models--USER--REPO", and back (nullopt for other folders).
std::string hub_folder(const std::string &repo);
std::optional<std::string> hub_repo(const std::string &folder);

// True for exactly `digits` hexadecimal digits in lower case.
bool is_hex(std::string_view text, size_t digits);

// Whether a path of a repository may become a path below a snapshot: it is relative, without "." and "..",
// control characters and backslashes.
bool is_safe_path(std::string_view path);

// The commits in the cache, the one of refs/main first.
std::vector<std::string> hub_commits(const std::filesystem::path &folder);

// The files of a snapshot, as paths of the repository, sorted. Ends early after 10,000 entries.
std::vector<std::string> snapshot_files(const std::filesystem::path &snapshot);

// Make or replace a link in a snapshot, and refs/main. Both throw std::filesystem::filesystem_error.
void link_blob(const std::filesystem::path &folder, const std::string &commit, const std::string &path,
               const std::string &blob);
void set_main(const std::filesystem::path &folder, const std::string &commit);

}  // namespace runnel::commands
