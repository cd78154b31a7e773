// A hub on the loopback: what Hugging Face answers to `runnel pull`, for any files.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/commands/models/sha256.h"
#include "engine/text/json.h"
#include "tests/engine/commands/models/models_support.h"
#include "tests/support/http_server.h"
#include "tests/support/random.h"

namespace runnel::testing {

inline std::string noise(size_t bytes, uint64_t seed) {
    Random random(seed);
    std::string text(bytes, '\0');
    for (char &c : text) c = static_cast<char>(random.below(256));
    return text;
}

inline std::string hash_of(const std::string &text) {
    commands::Sha256 sha;
    sha.add(std::as_bytes(std::span(text)));
    return sha.digest();
}

// The byte range in the request's Range header.
inline std::pair<size_t, size_t> range_of(const ServerRequest &request, size_t size) {
    const std::string range = request.header("range");
    if (!range.starts_with("bytes=")) return {0, size};
    const size_t dash = range.find('-');
    const size_t from = std::stoull(range.substr(6, dash - 6));
    return {from, std::min<size_t>(std::stoull(range.substr(dash + 1)) + 1, size)};
}

inline ServerReply ranged(const ServerRequest &request, const std::string &content) {
    const auto [from, end] = range_of(request, content.size());
    if (from >= content.size()) return {.status = 416};
    return {.status = 206,
            .body = content.substr(from, end - from),
            .headers = {"Content-Range: bytes " + std::to_string(from) + "-" + std::to_string(end - 1) + "/" +
                        std::to_string(content.size())}};
}

struct Listed {
    std::string path, content, sha256 = {};  // sha256 empty: the true hash
    size_t bytes = 0;                        // 0: the true size
};

inline std::string listing(const std::vector<Listed> &files) {
    text::Json siblings = text::Json::array();
    siblings.push_back({{"rfilename", "README.md"}, {"size", 3}, {"blobId", "x"}});
    for (const Listed &file : files)
        siblings.push_back({{"rfilename", file.path},
                            {"size", file.bytes ? file.bytes : file.content.size()},
                            {"lfs",
                             {{"sha256", file.sha256.empty() ? hash_of(file.content) : file.sha256},
                              {"size", file.bytes ? file.bytes : file.content.size()}}}});
    return text::Json{{"sha", kCommit}, {"siblings", siblings}}.dump();
}

inline bool is_api(const ServerRequest &request) {
    return request.path.starts_with("/api/");
}

// Answers requests for the list with `files`; `serve` answers all other requests.
inline HttpServer::Answer hub(std::vector<Listed> files, HttpServer::Answer serve) {
    return [list = listing(files), serve](const ServerRequest &request) {
        if (request.path == "/api/models/some/model-GGUF/revision/main?blobs=true")
            return ServerReply{.body = list};
        if (is_api(request)) return ServerReply{.status = 404, .headers = {"X-Error-Code: RepoNotFound"}};
        return serve(request);
    };
}

}  // namespace runnel::testing
