// HTTP requests with libcurl. The library is loaded when it is first needed, so the program also starts without it.
//
// Redirects are followed here, not by libcurl: a token is sent to the origin (scheme, host and port) of the first
// address only, and never from https to http. Proxies come from the environment, as libcurl reads it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace runnel::commands {

// Thrown if no complete answer arrives. what() is one line that names the host. Stopped: `stop` became true.
class HttpError : public std::runtime_error {
  public:
    enum class Kind { NoLibrary, Unreachable, Broken, Certificate, Refused, Stopped };
    HttpError(Kind k, const std::string &what) : std::runtime_error(what), kind(k) {}
    Kind kind;
};

struct HttpResponse {
    long status = 0;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string address;                         // after all redirects

    // The value of a header; empty if there is none.
    std::string header(const std::string &name) const;
};

struct HttpRequest {
    std::string address;
    std::string token = {};                                     // sent to the origin of `origin`; empty: none
    std::string origin = {};                                    // an address; empty: `address`
    std::optional<std::pair<uint64_t, uint64_t>> range = {};    // first byte, byte after the last
    std::function<bool(const HttpResponse &)> begin = {};       // before the body; false ends the request
    std::function<bool(std::span<const std::byte>)> body = {};  // false ends the request
    const std::atomic<bool> *stop = nullptr;
    int stall_seconds = 30;  // after this time without a byte: HttpError{Broken}
};

// One connection, kept for further requests. Used by one thread at a time.
class Http {
  public:
    Http();  // throws HttpError{NoLibrary}
    ~Http();
    Http(const Http &) = delete;
    Http &operator=(const Http &) = delete;

    // Returns the response, whatever its status is, also if `begin` or `body` ended the request. Throws HttpError if no
    // complete response arrives.
    HttpResponse get(const HttpRequest &request);

  private:
    struct Handle;
    HttpResponse get_once(const HttpRequest &request, const std::string &address, std::string &redirect);
    std::unique_ptr<Handle> handle_;
};

// "https://host:port" of an address, in lower case; empty if it is neither http nor https.
std::string origin_of(const std::string &address);

// Percent-encodes everything but letters, digits, "-._~" and "/".
std::string encoded_path(const std::string &path);

}  // namespace runnel::commands
