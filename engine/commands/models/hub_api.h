// Repositories of Hugging Face: their names on the command line, and the lists of their files.
//
//   GET ENDPOINT/api/models/USER/REPO/revision/main?blobs=true   the commit, and each file's size and SHA-256
//   GET ENDPOINT/USER/REPO/resolve/COMMIT/PATH                   a file, usually by a redirect to another host
//
// HF_ENDPOINT replaces https://huggingface.co. The token for private and gated repositories is HF_TOKEN, or
// the content of the file where Hugging Face's own programs keep it. The token is never printed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/models/http.h"

namespace runnel::commands {

struct HubName {
    std::string repo;  // "USER/REPO"
    std::string tag;   // of :QUANT; empty: none
    std::string file;  // a file of the repository by its path; empty: none

    std::string text() const;
};

// Parses USER/REPO, USER/REPO:QUANT or USER/REPO/PATH.gguf; each also after "hf.co/" or "huggingface.co/", with or
// without "https://", and as the address of a file's page (.../blob/main/PATH, .../resolve/main/PATH).
std::optional<HubName> parse_hub_name(std::string_view text);
// As parse_hub_name(), but only with "hf.co/" or "huggingface.co/" in front: such names are not paths of files.
std::optional<HubName> parse_hub_address(std::string_view text);

struct HubFile {
    std::string path;
    uint64_t bytes = 0;
    std::string sha256;
};

struct HubRepository {
    std::string commit;
    std::vector<HubFile> files;  // GGUF files only
};

struct HubServer {
    std::string endpoint;  // without "/" at the end
    std::string token;     // empty: none

    std::string file_address(const std::string &repo, const std::string &commit,
                             const std::string &path) const;
};

// Server and token from the environment. Throws UsageError for an endpoint that is not an address, and for a
// token with characters that are not allowed.
HubServer hub_server();

// Throws UsageError if there is no such repository or no access to it, HttpError, and OutputError for an
// invalid answer.
HubRepository list_repository(Http &http, const HubServer &server, const std::string &repo,
                              const std::atomic<bool> &stop, int stall_seconds);

// Throws for an answer that is not a success: UsageError for 401, 403 and 404, else OutputError. `what`: "USER/REPO".
void check_status(const HttpResponse &response, const HubServer &server, const std::string &what);

// Parses the answer of the server. Throws OutputError.
HubRepository parse_repository(std::string_view json);

}  // namespace runnel::commands
