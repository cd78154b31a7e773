// Downloads one file whose size and SHA-256 are known, over several connections, into PATH.incomplete, which becomes
// PATH when its hash is right.
//
// The file is requested in ranges, which may arrive in any order but are written in the file's order. PATH.incomplete
// is thus a prefix of the file at any time, and a download that was interrupted or killed continues where it ended. A
// server without ranges sends the whole file over one connection; the part that is already there is skipped.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace runnel::commands {

struct DownloadOptions {
    int connections = 4;
    int retries = 5;                     // per connection: attempts in a row without a byte
    int stall_seconds = 30;              // after this time without a byte, the connection is made anew
    uint64_t range = uint64_t{8} << 20;  // bytes of a request; twice as many per connection may be in memory
};

struct DownloadTask {
    std::string address, token = {};
    std::filesystem::path path;
    std::string name, repo;  // of the file and of its repository, for messages
    uint64_t bytes = 0;
    std::string sha256;
};

// Called about five times a second with the number of bytes downloaded, and whether the file is being hashed
// now.
using DownloadProgress = std::function<void(uint64_t done, bool is_hashing)>;

// Throws Interrupted (the partial file stays), HttpError, UsageError, OutputError. If the hash is wrong,
// removes the partial file; if it began with a part from an earlier run, first downloads the whole file once
// more.
void download(const DownloadTask &task, const DownloadOptions &options, const std::atomic<bool> &stop,
              const DownloadProgress &progress);

// The path of the partial file: PATH.incomplete.
std::filesystem::path partial_path(const std::filesystem::path &path);

}  // namespace runnel::commands
