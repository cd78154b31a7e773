#include "engine/commands/models/hub_api.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/models/hub_layout.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLargestAnswer = size_t{32} << 20;
constexpr uint64_t kLargestFile = uint64_t{1} << 46;

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "";
}

// The file where `hf auth login` keeps the token.
fs::path token_file() {
    if (const std::string path = variable("HF_TOKEN_PATH"); !path.empty()) return path;
    if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "token";
    if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
        return fs::path(cache) / "huggingface" / "token";
    if (const std::string home = variable("HOME"); !home.empty())
        return fs::path(home) / ".cache" / "huggingface" / "token";
    return {};
}

std::string read_token() {
    for (const char *name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
        if (const std::string token = variable(name); !token.empty()) return token;
    std::error_code error;
    if (!fs::is_regular_file(token_file(), error)) return "";
    std::string token(1024, '\0');
    std::ifstream in(token_file(), std::ios::binary);
    in.read(token.data(), static_cast<std::streamsize>(token.size()));
    token.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    return token;
}

std::string without_blanks(const std::string &text) {
    const size_t from = text.find_first_not_of(" \t\r\n");
    return from == text.npos ? "" : text.substr(from, text.find_last_not_of(" \t\r\n") - from + 1);
}

std::string text_of(const Json *value) {
    return value && value->is_string() ? value->get<std::string>() : "";
}

// The text after "hf.co/" or "huggingface.co/", with or without "https://" in front; nullopt without such a
// host.
std::optional<std::string_view> behind_host(std::string_view text) {
    for (const std::string_view scheme : {"https://", "http://"})
        if (text.starts_with(scheme)) text.remove_prefix(scheme.size());
    for (const std::string_view host : {"hf.co/", "huggingface.co/"})
        if (text.starts_with(host)) return text.substr(host.size());
    return std::nullopt;
}

}  // namespace

std::string HubName::text() const {
    return repo + (!file.empty() ? "/" + file : tag.empty() ? "" : ":" + tag);
}

std::optional<HubName> parse_hub_name(std::string_view text) {
    if (const auto rest = behind_host(text)) text = *rest;
    text = text.substr(0, text.find('?'));
    HubName name;
    const size_t user = text.find('/');
    const size_t repo = user == text.npos ? text.npos : text.find('/', user + 1);
    if (repo != text.npos) {
        std::string_view file = text.substr(repo + 1);
        for (const std::string_view page : {"blob/main/", "resolve/main/"})
            if (file.starts_with(page)) {
                file.remove_prefix(page.size());
                break;
            }
        if (!is_safe_path(file) || !file.ends_with(".gguf")) return std::nullopt;
        name.file = file;
        text = text.substr(0, repo);
    } else if (const size_t colon = text.find(':'); colon != text.npos) {
        name.tag = text.substr(colon + 1);
        const auto is_tag = [](char c) {
            return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
        };
        if (name.tag.empty() || name.tag.size() > 64 || !std::ranges::all_of(name.tag, is_tag))
            return std::nullopt;
        text = text.substr(0, colon);
    }
    name.repo = text;
    return is_repo_name(name.repo) ? std::optional(name) : std::nullopt;
}

std::optional<HubName> parse_hub_address(std::string_view text) {
    return behind_host(text) ? parse_hub_name(text) : std::nullopt;
}

std::string HubServer::file_address(const std::string &repo, const std::string &commit,
                                    const std::string &path) const {
    return endpoint + "/" + repo + "/resolve/" + commit + "/" + encoded_path(path);
}

HubServer hub_server() {
    HubServer server{variable("HF_ENDPOINT"), without_blanks(read_token())};
    if (server.endpoint.empty()) server.endpoint = "https://huggingface.co";
    while (server.endpoint.ends_with('/')) server.endpoint.pop_back();
    if (origin_of(server.endpoint).empty())
        throw UsageError("HF_ENDPOINT: " + gguf::quoted(server.endpoint) +
                         " is not an address such as https://huggingface.co");
    if (std::ranges::any_of(server.token, [](char c) { return c <= ' ' || c >= 0x7f; }))
        throw UsageError("HF_TOKEN has characters that are not allowed in a token");
    return server;
}

namespace {

// "https://huggingface.co", without the port if it is the default.
std::string shown_server(const HubServer &server) {
    std::string origin = origin_of(server.endpoint);
    for (const auto &[scheme, port] : {std::pair("https:", ":443"), std::pair("http:", ":80")})
        if (origin.starts_with(scheme) && origin.ends_with(port)) origin.resize(origin.rfind(':'));
    return gguf::printable(origin, 200);
}

}  // namespace

void check_status(const HttpResponse &response, const HubServer &server, const std::string &what) {
    const long status = response.status;
    if (status >= 200 && status < 300) return;
    const std::string shown = gguf::printable(what, 300), code = response.header("x-error-code");
    const std::string host = shown_server(server);
    const std::string number = std::to_string(status);
    const bool has_token = !server.token.empty();
    if (code == "GatedRepo")
        throw UsageError(
            shown + " is gated: accept its terms at " + shown_server(server) + "/" + shown +
            (has_token ? " with the account of HF_TOKEN" : ", then set HF_TOKEN to an access token"));
    if (status == 401)
        throw UsageError(shown +
                         (has_token ? ": the server does not accept HF_TOKEN for it (401): is the token "
                                      "valid, and the name right?"
                                    : ": there is no such repository, or it is private (401): for a private "
                                      "one, set HF_TOKEN to an access token"));
    if (status == 403) throw UsageError(shown + ": the server refuses access (403)");
    if (status == 404) throw UsageError(shown + ": not found on " + host + " (404)");
    if (status == 429) throw OutputError(host + " received too many requests (429): try again later");
    throw OutputError(shown + ": " + host + " answers with status " + number);
}

HubRepository parse_repository(std::string_view text) {
    Json json;
    try {
        json = parse_json(text, {.bytes = kLargestAnswer});
    } catch (const JsonError &error) {
        throw OutputError(std::string("the server's list of files is not JSON: ") + error.what());
    }
    HubRepository repository{text_of(text::find_member(json, "sha")), {}};
    const Json *files = text::find_member(json, "siblings");
    if (!is_hex(repository.commit, 40) || !files || !files->is_array())
        throw OutputError("the server's answer has no commit or no list of files");
    for (const Json &entry : *files) {
        HubFile file{.path = text_of(text::find_member(entry, "rfilename")), .sha256 = {}};
        if (!file.path.ends_with(".gguf") || !is_safe_path(file.path)) continue;
        if (const Json *size = text::find_member(entry, "size"); size && size->is_number_unsigned())
            file.bytes = size->get<uint64_t>();
        if (const Json *lfs = text::find_member(entry, "lfs")) {
            file.sha256 = text_of(text::find_member(*lfs, "sha256"));
            if (const Json *size = text::find_member(*lfs, "size"); size && size->is_number_unsigned())
                file.bytes = size->get<uint64_t>();
        }
        if (!is_hex(file.sha256, 64)) file.sha256.clear();
        if (file.bytes > kLargestFile)
            throw OutputError("the server says that " + gguf::printable(file.path, 300) + " has " +
                              std::to_string(file.bytes) + " bytes");
        repository.files.push_back(std::move(file));
    }
    return repository;
}

namespace {

// Tries again if the connection breaks, but not if no connection can be made.
HttpResponse get_patiently(Http &http, const HttpRequest &request, std::string &body) {
    constexpr int kMostFailures = 3;
    for (int failures = 0;;) try {
            body.clear();
            return http.get(request);
        } catch (const HttpError &error) {
            if (error.kind != HttpError::Kind::Broken || ++failures > kMostFailures) throw;
        }
}

}  // namespace

HubRepository list_repository(Http &http, const HubServer &server, const std::string &repo,
                              const std::atomic<bool> &stop, int stall_seconds) {
    std::string body;
    bool is_long = false;
    const HttpResponse response =
        get_patiently(http,
                      {.address = server.endpoint + "/api/models/" + repo + "/revision/main?blobs=true",
                       .token = server.token,
                       .begin = [](const HttpResponse &r) { return r.status == 200; },
                       .body =
                           [&](std::span<const std::byte> bytes) {
                               is_long = body.size() + bytes.size() > kLargestAnswer;
                               if (!is_long)
                                   body.append(reinterpret_cast<const char *>(bytes.data()), bytes.size());
                               return !is_long;
                           },
                       .stop = &stop,
                       .stall_seconds = stall_seconds},
                      body);
    check_status(response, server, repo);
    if (is_long) throw OutputError(repo + ": the server's list of files is longer than 32 MiB");
    return parse_repository(body);
}

}  // namespace runnel::commands
