// What the commands that write model files have in common: checks before hours of work, and a bar.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "engine/commands/io.h"
#include "gguf/file.h"

namespace runnel::commands {

// "MODEL.gguf", and "MODEL-00001-of-00003.gguf" if the file has parts, without these endings.
std::string model_stem(const gguf::File &model);

// Throw UsageError if the path is a folder, the source itself, or exists without --overwrite.
void check_destination(const std::filesystem::path &path, bool overwrite);
void check_destination(const std::filesystem::path &path, const gguf::File &source, bool overwrite);
// Throws gguf::FileError if the alignment of the first part makes a copy much larger than the source: tensors of other parts
// may lie closer together, and a hostile set of a few KiB would fill the disk with zeros.
void check_padding(const gguf::File &source);
// Throws OutputError if the disk has less room than `bytes` of tensor data need.
void check_space(uint64_t bytes, const std::filesystem::path &destination);

// "splitting [####----]  50%  2.3 of 4.6 GiB  21 s left" on a terminal, from the first second on, at most five times a
// second. The destructor removes it.
class CopyBar {
  public:
    CopyBar(std::string_view verb, uint64_t all, Io &io) : verb_(verb), all_(all), io_(io) {}
    ~CopyBar();
    CopyBar(const CopyBar &) = delete;
    CopyBar &operator=(const CopyBar &) = delete;

    void update(uint64_t done);

  private:
    using Clock = std::chrono::steady_clock;
    std::string verb_;
    uint64_t all_;
    Io &io_;
    const Clock::time_point start_ = Clock::now();
    Clock::time_point last_{};
    bool drawn_ = false;
};

// "imatrix [####------]  40%  4 of 10 chunks  21 s left" on a terminal, at most five times a second.
class CountBar {
  public:
    CountBar(std::string_view verb, std::string_view unit, int64_t all, Io &io)
        : verb_(verb), unit_(unit), all_(all), io_(io) {}
    ~CountBar();
    CountBar(const CountBar &) = delete;
    CountBar &operator=(const CountBar &) = delete;

    void update(int64_t done);

  private:
    using Clock = std::chrono::steady_clock;
    std::string verb_, unit_;
    int64_t all_;
    Io &io_;
    const Clock::time_point start_ = Clock::now();
    Clock::time_point last_{};
    bool drawn_ = false;
};

// Calls work(progress) with a bar; Ctrl-C makes progress() false. Returns the exit code: 130 if work() returns false.
int with_bar(std::string_view verb, uint64_t all, Io &io,
             const std::function<bool(const std::function<bool(uint64_t)> &)> &work);

}  // namespace runnel::commands
