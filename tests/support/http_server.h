// A small HTTP server on the loopback, for tests of downloads: every request is answered by a function, on a thread of
// its own, over a connection of its own. The answer may be cut short, stall, or have a wrong length.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace runnel::testing {

struct ServerRequest {
    std::string path;                            // with the query
    std::map<std::string, std::string> headers;  // names in lower case

    std::string header(const std::string &name) const {
        const auto found = headers.find(name);
        return found == headers.end() ? "" : found->second;
    }
};

struct ServerReply {
    int status = 200;
    std::string body = {};
    std::vector<std::string> headers = {};  // "Name: value", in addition to Content-Length
    size_t cut = static_cast<size_t>(-1);   // the connection is closed after this many bytes of the body
    bool stalls = false;                    // after `cut` bytes, sends nothing until the client gives up
    std::string length = {};                // a Content-Length that is not the body's; "-": none
};

class HttpServer {
  public:
    using Answer = std::function<ServerReply(const ServerRequest &)>;

    explicit HttpServer(Answer answer) : answer_(std::move(answer)) {
        listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        if (bind(listener_, reinterpret_cast<sockaddr *>(&address), size) != 0 ||
            listen(listener_, 64) != 0 ||
            getsockname(listener_, reinterpret_cast<sockaddr *>(&address), &size) != 0)
            throw std::runtime_error("no loopback server");
        port_ = ntohs(address.sin_port);
        acceptor_ = std::thread([this] { accept_all(); });
    }
    ~HttpServer() {
        shutdown(listener_, SHUT_RDWR);
        acceptor_.join();
        close(listener_);
        {
            const std::lock_guard lock(mutex_);
            for (const int fd : open_) shutdown(fd, SHUT_RDWR);
        }
        for (std::thread &thread : threads_) thread.join();
    }
    HttpServer(const HttpServer &) = delete;
    HttpServer &operator=(const HttpServer &) = delete;

    std::string address(const std::string &host = "127.0.0.1") const {
        return "http://" + host + ":" + std::to_string(port_);
    }
    std::vector<ServerRequest> requests() const {
        const std::lock_guard lock(mutex_);
        return requests_;
    }

  private:
    void accept_all() {
        for (;;) {
            const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
            if (fd < 0) return;
            const std::lock_guard lock(mutex_);
            open_.push_back(fd);
            threads_.emplace_back([this, fd] { serve(fd); });
        }
    }

    static bool put(int fd, std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n <= 0) return false;
            bytes.remove_prefix(static_cast<size_t>(n));
        }
        return true;
    }

    static bool read_request(int fd, ServerRequest &request) {
        std::string text;
        char buffer[4096];
        while (text.find("\r\n\r\n") == std::string::npos) {
            const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
            if (n <= 0) return false;
            text.append(buffer, static_cast<size_t>(n));
        }
        const size_t path = text.find(' ') + 1;
        request.path = text.substr(path, text.find(' ', path) - path);
        for (size_t at = text.find("\r\n") + 2; text[at] != '\r';) {
            const size_t end = text.find("\r\n", at), colon = text.find(": ", at);
            std::string name = text.substr(at, colon - at);
            std::transform(name.begin(), name.end(), name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
            request.headers[name] = text.substr(colon + 2, end - colon - 2);
            at = end + 2;
        }
        return true;
    }

    void serve(int fd) {
        ServerRequest request;
        if (read_request(fd, request)) {
            {
                const std::lock_guard lock(mutex_);
                requests_.push_back(request);
            }
            const ServerReply reply = answer_(request);
            std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " X\r\nConnection: close\r\n";
            if (reply.length != "-")
                head += "Content-Length: " +
                        (reply.length.empty() ? std::to_string(reply.body.size()) : reply.length) + "\r\n";
            for (const std::string &line : reply.headers) head += line + "\r\n";
            if (put(fd, head + "\r\n") && put(fd, std::string_view(reply.body).substr(0, reply.cut)) &&
                reply.stalls) {
                char byte;
                (void)!recv(fd, &byte, 1, 0);  // until the client closes, or this server ends
            }
        }
        const std::lock_guard lock(mutex_);
        open_.erase(std::find(open_.begin(), open_.end(), fd));
        close(fd);
    }

    Answer answer_;
    int listener_ = -1;
    uint16_t port_ = 0;
    std::thread acceptor_;
    mutable std::mutex mutex_;
    std::vector<std::thread> threads_;
    std::vector<int> open_;
    std::vector<ServerRequest> requests_;
};

}  // namespace runnel::testing
