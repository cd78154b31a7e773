// Downloads one file whose size and SHA-256 are known, over several connections, into PATH.incomplete, which becomes
// PATH when its hash is right.
//
// The file is requested in ranges. They may arrive in any order but are written in theirs: PATH.incomplete is a
// prefix of the file at any time, so a download that was interrupted or killed goes on where it ended. A server
// without ranges sends the whole file over one connection, and what is already there is skipped.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace runnel::commands {

struct DownloadOptions {
    int connections = 4;
    int retries = 5;                     // in a row without a byte, per connection
    int stall_seconds = 30;              // without a byte: the connection is made anew
    uint64_t range = uint64_t{8} << 20;  // bytes of a request; twice as many per connection may be in memory
};

struct DownloadTask {
    std::string address, token = {};
    std::filesystem::path path;
    std::string name, repo;  // of the file and of its repository, for messages
    uint64_t bytes = 0;
    std::string sha256;
};

// Called about five times a second, with the bytes that are there, and whether they are now hashed.
using DownloadProgress = std::function<void(uint64_t done, bool is_hashing)>;

// Throws Interrupted (the partial file stays), HttpError, UsageError, OutputError. If the hash is wrong, the partial
// file is removed; if a part of it was there before, the file is first downloaded anew once.
void download(const DownloadTask &task, const DownloadOptions &options, const std::atomic<bool> &stop,
              const DownloadProgress &progress);

// The part of it that is there.
std::filesystem::path partial_path(const std::filesystem::path &path);

}  // namespace runnel::commands
