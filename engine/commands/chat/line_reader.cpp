#include "engine/commands/chat/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/commands/io.h"

namespace runnel::commands {

LineReader::LineReader(int fd, std::string name, size_t longest, std::string before)
    : fd_(fd), name_(std::move(name)), longest_(longest), buffer_(std::move(before)), at_end_(fd < 0) {}

// Appends more bytes to the buffer, or records the end of the input. False when nothing came in time.
bool LineReader::fill(int wait_milliseconds) {
    constexpr size_t kRead = size_t{1} << 16;
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, wait_milliseconds) <= 0) return false;
    buffer_.erase(0, std::exchange(begin_, 0));
    const size_t used = buffer_.size();
    buffer_.resize(used + kRead);
    const ssize_t got = read(fd_, buffer_.data() + used, kRead);
    const int error = errno;
    buffer_.resize(used + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && (error == EINTR || error == EAGAIN)) return false;
    if (got < 0) throw InputError("cannot read " + name_ + ": " + std::generic_category().message(error));
    at_end_ = got == 0;
    return true;
}

// Takes the line of `length` bytes at begin_; the next one begins at `end`.
bool LineReader::take(std::string &line, size_t length, size_t end) {
    cut_ = dropped_ > 0 || length > longest_;
    line.assign(buffer_, begin_, std::min(length, longest_));
    offset_ += dropped_ + (end - begin_);
    begin_ = end;
    searched_ = dropped_ = 0;
    if (line.ends_with('\r')) line.pop_back();
    if (number_++ == 0 && line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
    return true;
}

LineReader::State LineReader::next(std::string &line, int wait_milliseconds) {
    for (;;) {
        const size_t newline = buffer_.find('\n', begin_ + searched_);
        ended_ = newline != std::string::npos;
        if (ended_ && take(line, newline - begin_, newline + 1)) return State::Line;
        searched_ = buffer_.size() - begin_;
        if (at_end_) {
            if (searched_ == 0 && dropped_ == 0) return State::End;
            if (take(line, searched_, buffer_.size())) return State::Line;
        }
        if (searched_ > longest_ + 1) {  // keep only the beginning of a line that is too long
            const size_t extra = searched_ - longest_;
            buffer_.resize(begin_ + longest_);
            dropped_ += extra;
            searched_ = longest_;
        }
        if (!fill(wait_milliseconds)) return State::NotYet;
    }
}

}  // namespace runnel::commands
