#include "engine/commands/models/http.h"

#define CURL_DISABLE_DEPRECATION  // CURLOPT_PROTOCOLS has no replacement in older libraries
#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <utility>

#include "gguf/base/timer.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

// The functions of libcurl that are used.
struct Library {
    decltype(&curl_global_init) global_init = nullptr;
    decltype(&curl_easy_init) init = nullptr;
    decltype(&curl_easy_setopt) set = nullptr;
    decltype(&curl_easy_perform) perform = nullptr;
    decltype(&curl_easy_getinfo) info = nullptr;
    decltype(&curl_easy_strerror) error = nullptr;
    decltype(&curl_easy_cleanup) cleanup = nullptr;
    decltype(&curl_easy_reset) reset = nullptr;
    decltype(&curl_slist_append) append = nullptr;
    decltype(&curl_slist_free_all) free_all = nullptr;
};

template <class Function>
void find(void *library, const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) throw HttpError(HttpError::Kind::NoLibrary, std::string("libcurl.so.4 has no ") + name);
}

Library load() {
    // RUNNEL_LIBCURL is the path of a library in another place.
    const char *named = std::getenv("RUNNEL_LIBCURL");
    void *handle = nullptr;
    if (named && *named)
        handle = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    else
        for (const char *name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
            if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        throw HttpError(HttpError::Kind::NoLibrary,
                        "downloads need libcurl.so.4, which is not installed: apt install libcurl4");
    Library l;
    find(handle, "curl_global_init", l.global_init);
    find(handle, "curl_easy_init", l.init);
    find(handle, "curl_easy_setopt", l.set);
    find(handle, "curl_easy_perform", l.perform);
    find(handle, "curl_easy_getinfo", l.info);
    find(handle, "curl_easy_strerror", l.error);
    find(handle, "curl_easy_cleanup", l.cleanup);
    find(handle, "curl_easy_reset", l.reset);
    find(handle, "curl_slist_append", l.append);
    find(handle, "curl_slist_free_all", l.free_all);
    l.global_init(CURL_GLOBAL_DEFAULT);
    return l;
}

const Library &library() {
    static const Library loaded = load();
    return loaded;
}

std::string lower(std::string_view text) {
    std::string result(text);
    for (char &c : result)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return result;
}

std::string shown_host(const std::string &address) {
    const std::string origin = origin_of(address);
    return gguf::printable(origin.substr(origin.find("://") + 3), 200);
}

// What the callbacks of one request share.
struct Transfer {
    const HttpRequest &request;
    HttpResponse response = {};
    bool begun = false, ended = false;  // `ended`: begin() or body() ended the request
    CURL *easy;
    curl_off_t received = 0;
    base::Clock::time_point last_byte = base::Clock::now();
    bool stalled = false;
    std::exception_ptr thrown = {};  // by a callback; exceptions must not pass through libcurl, which is C
};

constexpr size_t kMostHeaders = 100, kLongestHeader = 16384;

void take_header(std::string_view line, std::map<std::string, std::string> &headers) {
    if (line.starts_with("HTTP/")) return headers.clear();
    const size_t colon = line.find(':');
    if (colon == line.npos || line.size() > kLongestHeader || headers.size() >= kMostHeaders) return;
    size_t from = colon + 1, end = line.size();
    while (from < end && (line[from] == ' ' || line[from] == '\t')) ++from;
    while (end > from && std::isspace(static_cast<unsigned char>(line[end - 1]))) --end;
    headers[lower(line.substr(0, colon))] = line.substr(from, end - from);
}

// Runs the work of a callback. Returns `size` if it returned true, else 0, which ends the transfer.
size_t guarded(Transfer &transfer, size_t size, auto work) {
    try {
        return work() ? size : 0;
    } catch (...) {
        transfer.thrown = std::current_exception();
        return 0;
    }
}

size_t on_header(char *data, size_t, size_t size, void *context) {
    Transfer &transfer = *static_cast<Transfer *>(context);
    return guarded(transfer, size, [&] {
        transfer.last_byte = base::Clock::now();
        take_header({data, size}, transfer.response.headers);
        return true;
    });
}

bool begin(Transfer &transfer) {
    if (transfer.begun) return true;
    transfer.begun = true;
    library().info(transfer.easy, CURLINFO_RESPONSE_CODE, &transfer.response.status);
    if (transfer.request.begin && !transfer.request.begin(transfer.response)) transfer.ended = true;
    return !transfer.ended;
}

bool is_redirect(long status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

size_t on_body(char *data, size_t, size_t size, void *context) {
    Transfer &transfer = *static_cast<Transfer *>(context);
    return guarded(transfer, size, [&] {
        long status = 0;
        library().info(transfer.easy, CURLINFO_RESPONSE_CODE, &status);
        if (is_redirect(status)) return true;
        if (!begin(transfer)) return false;
        const auto bytes = std::as_bytes(std::span<const char>(data, size));
        if (transfer.request.body && !transfer.request.body(bytes)) transfer.ended = true;
        return !transfer.ended;
    });
}

// Called about once a second, and when something arrives. Nonzero ends the transfer.
int on_progress(void *context, curl_off_t, curl_off_t received, curl_off_t, curl_off_t) {
    Transfer &transfer = *static_cast<Transfer *>(context);
    const HttpRequest &request = transfer.request;
    if (received != transfer.received) {
        transfer.received = received;
        transfer.last_byte = base::Clock::now();
    }
    transfer.stalled = base::seconds_since(transfer.last_byte) >= request.stall_seconds;
    return transfer.stalled || (request.stop && request.stop->load()) ? 1 : 0;
}

[[noreturn]] void fail(CURLcode code, const std::string &address) {
    using Kind = HttpError::Kind;
    const std::string host = shown_host(address);
    const std::string why = gguf::printable(library().error(code), 200);
    switch (code) {
        case CURLE_ABORTED_BY_CALLBACK:
            throw HttpError(Kind::Stopped, "stopped");
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_RESOLVE_PROXY:
            throw HttpError(Kind::Unreachable,
                            "cannot find " + host + ": is this machine online? (" + why + ")");
        case CURLE_COULDNT_CONNECT:
            throw HttpError(Kind::Unreachable,
                            "cannot connect to " + host + ": is this machine online? (" + why + ")");
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
            throw HttpError(Kind::Certificate, host + ": its certificate is not valid (" + why + ")");
        case CURLE_OPERATION_TIMEDOUT:
            throw HttpError(Kind::Broken, host + " does not send anything");
        default:
            throw HttpError(Kind::Broken, host + ": the connection broke (" + why + ")");
    }
}

}  // namespace

struct Http::Handle {
    CURL *easy = library().init();
    curl_slist *headers = nullptr;
    ~Handle() {
        if (headers) library().free_all(headers);
        if (easy) library().cleanup(easy);
    }
};

Http::Http() : handle_(std::make_unique<Handle>()) {
    if (!handle_->easy) throw std::bad_alloc();
}

Http::~Http() = default;

std::string HttpResponse::header(const std::string &name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
}

HttpResponse Http::get_once(const HttpRequest &request, const std::string &address, std::string &redirect) {
    const Library &curl = library();
    CURL *easy = handle_->easy;
    Transfer transfer{.request = request, .easy = easy};
    curl.reset(easy);  // keeps the connection
    curl.set(easy, CURLOPT_URL, address.c_str());
    curl.set(easy, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl.set(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl.set(easy, CURLOPT_NOSIGNAL, 1L);  // libcurl's signals would disturb other threads
    curl.set(easy, CURLOPT_USERAGENT, "runnel");
    curl.set(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl.set(easy, CURLOPT_CONNECTTIMEOUT, static_cast<long>(request.stall_seconds));
    curl.set(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl.set(easy, CURLOPT_HEADERDATA, &transfer);
    curl.set(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl.set(easy, CURLOPT_WRITEDATA, &transfer);
    curl.set(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl.set(easy, CURLOPT_XFERINFODATA, &transfer);
    curl.set(easy, CURLOPT_NOPROGRESS, 0L);
    if (request.range) {
        const std::string range =
            std::to_string(request.range->first) + "-" + std::to_string(request.range->second - 1);
        curl.set(easy, CURLOPT_RANGE, range.c_str());  // libcurl copies it
    }
    if (handle_->headers) curl.free_all(std::exchange(handle_->headers, nullptr));
    const std::string &origin = request.origin.empty() ? request.address : request.origin;
    if (!request.token.empty() && origin_of(address) == origin_of(origin)) {
        handle_->headers = curl.append(nullptr, ("Authorization: Bearer " + request.token).c_str());
        curl.set(easy, CURLOPT_HTTPHEADER, handle_->headers);
    }
    const CURLcode code = curl.perform(easy);
    if (transfer.thrown) std::rethrow_exception(transfer.thrown);
    if (transfer.stalled)
        throw HttpError(HttpError::Kind::Broken, shown_host(address) + " no longer sends anything");
    if (code != CURLE_OK && !transfer.ended) fail(code, address);
    curl.info(easy, CURLINFO_RESPONSE_CODE, &transfer.response.status);
    transfer.response.address = address;
    if (is_redirect(transfer.response.status)) {
        const char *next = nullptr;
        curl.info(easy, CURLINFO_REDIRECT_URL, &next);
        redirect = next ? next : "";
    } else {
        begin(transfer);  // not called yet if the answer has no body
    }
    return std::move(transfer.response);
}

HttpResponse Http::get(const HttpRequest &request) {
    constexpr int kMostRedirects = 10;
    std::string address = request.address;
    for (int i = 0; i <= kMostRedirects; ++i) {
        if (origin_of(address).empty())
            throw HttpError(HttpError::Kind::Refused,
                            "the server redirects to an address that is neither http nor https");
        std::string redirect;
        HttpResponse response = get_once(request, address, redirect);
        if (!is_redirect(response.status)) return response;
        if (redirect.empty())
            throw HttpError(HttpError::Kind::Refused,
                            shown_host(address) + ": the server redirects without an address");
        if (origin_of(address).starts_with("https:") && !origin_of(redirect).starts_with("https:"))
            throw HttpError(HttpError::Kind::Refused,
                            shown_host(address) + ": the server redirects from https to http");
        address = redirect;
    }
    throw HttpError(HttpError::Kind::Refused, shown_host(request.address) + ": too many redirects");
}

std::string origin_of(const std::string &address) {
    const size_t scheme = address.find("://");
    if (scheme == std::string::npos) return "";
    const std::string name = lower(address.substr(0, scheme));
    if (name != "http" && name != "https") return "";
    const size_t from = scheme + 3, end = std::min(address.find_first_of("/?#\\", from), address.size());
    std::string host = lower(address.substr(from, end - from));
    if (const size_t user = host.rfind('@'); user != std::string::npos) host = host.substr(user + 1);
    if (host.empty()) return "";
    const size_t port = host.rfind(':');
    if (port == std::string::npos || host.find(']', port) != std::string::npos)
        host += name == "https" ? ":443" : ":80";
    return name + "://" + host;
}

std::string encoded_path(const std::string &path) {
    std::string result;
    for (const char c : path) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80 && (std::isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' || c == '/')) {
            result += c;
        } else {
            result += '%';
            result += "0123456789ABCDEF"[byte >> 4];
            result += "0123456789ABCDEF"[byte & 15];
        }
    }
    return result;
}

}  // namespace runnel::commands
