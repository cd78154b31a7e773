#include "engine/commands/quantize/model_output.h"

#include "engine/commands/figures.h"
#include "engine/decode/stop_request.h"
#include "gguf/printable.h"

namespace runnel::commands {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string model_stem(const gguf::File &model) {
    std::string name = model.path().native();
    const auto cut = [&](const std::string &ending) {
        if (name.ends_with(ending)) name.resize(name.size() - ending.size());
    };
    // (The path may be that of any part.)
    const auto parts = static_cast<int64_t>(model.parts());
    for (int64_t i = 0; parts > 1 && i < parts; ++i) cut(gguf::part_ending(i, parts));
    cut(".gguf");
    return name;
}

void check_destination(const fs::path &path, bool overwrite) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    const std::string shown = gguf::printable(path.native(), 1024);
    if (fs::is_directory(status)) throw UsageError(shown + ": is a folder");
    if (fs::is_regular_file(status) && !overwrite)
        throw UsageError(shown + ": exists already; --overwrite replaces it");
}

void check_destination(const fs::path &path, const gguf::File &source, bool overwrite) {
    std::error_code unknown;
    if (fs::equivalent(path, source.path(), unknown))
        throw UsageError(gguf::printable(path.native(), 1024) +
                         ": this is the input file: choose another output");
    check_destination(path, overwrite);
}

void check_padding(const gguf::File &source) {
    constexpr uint64_t kAlways = uint64_t{64} << 20;
    uint64_t padding = 0;
    for (const gguf::Tensor &tensor : source.tensors())
        padding += (source.alignment() - tensor.bytes % source.alignment()) % source.alignment();
    if (padding > source.file_bytes() + kAlways)
        throw gguf::FileError(gguf::printable(source.path().native(), 4096) + ": general.alignment is " +
                              std::to_string(source.alignment()) + ", which would add " + size_text(padding) +
                              " of zeros");
}

void check_space(uint64_t bytes, const fs::path &destination) {
    constexpr uint64_t kMetadata = uint64_t{16} << 20;
    const fs::path folder = fs::absolute(destination).parent_path();
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (!error && space.available < bytes + kMetadata)
        throw OutputError(gguf::printable(destination.native(), 1024) + ": needs " +
                          size_text(bytes + kMetadata) + ", but the disk has " + size_text(space.available) +
                          " free");
}

CopyBar::~CopyBar() {
    if (drawn_) io_.progress("\r\x1b[K");
}

void CopyBar::update(uint64_t done) {
    const auto now = Clock::now();
    if (!io_.err.is_terminal() || io_.quiet || now - start_ < 1s || now - last_ < 200ms || all_ == 0) return;
    last_ = now;
    drawn_ = true;
    const double share = static_cast<double>(done) / static_cast<double>(all_);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    io_.progress("\r" + verb_ + " " + progress_bar(share) +
                 format("%s of %s  %.0f s left", size_text(done).c_str(), size_text(all_).c_str(),
                        share > 0 ? seconds / share - seconds : 0) +
                 "\x1b[K");
}

CountBar::~CountBar() {
    if (drawn_) io_.progress("\r\x1b[K");
}

void CountBar::update(int64_t done) {
    const auto now = Clock::now();
    if (!io_.err.is_terminal() || io_.quiet || now - last_ < 200ms || all_ == 0) return;
    last_ = now;
    drawn_ = true;
    const double share = static_cast<double>(done) / static_cast<double>(all_);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::string text = std::to_string(done) + " of " + std::to_string(all_) + " " + unit_;
    if (done > 0) text += format("  %.0f s left", seconds / share - seconds);
    io_.progress("\r" + verb_ + " " + progress_bar(share) + text + "\x1b[K");
}

int with_bar(std::string_view verb, uint64_t all, Io &io,
             const std::function<bool(const std::function<bool(uint64_t)> &)> &work) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    CopyBar bar(verb, all, io);
    const bool is_done = work([&](uint64_t done) {
        bar.update(done);
        return !stop.requested();
    });
    return is_done ? exit_code::kDone : exit_code::kInterrupted;
}

}  // namespace runnel::commands
