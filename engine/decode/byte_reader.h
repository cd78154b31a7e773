// Takes values from the front of untrusted bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace runnel::decode {

// Once too few bytes are left, values are empty or 0, and failed().
class ByteReader {
  public:
    using Bytes = std::span<const std::byte>;
    explicit ByteReader(Bytes bytes) : rest_(bytes) {}

    Bytes take(uint64_t count) {
        if (count > rest_.size()) {
            failed_ = true;
            rest_ = {};
            return {};
        }
        const Bytes taken = rest_.first(static_cast<size_t>(count));
        rest_ = rest_.subspan(taken.size());
        return taken;
    }
    template <typename T>
    T value() {
        T result{};
        const Bytes bytes = take(sizeof result);
        if (!bytes.empty()) std::memcpy(&result, bytes.data(), sizeof result);
        return result;
    }
    size_t left() const { return rest_.size(); }
    bool at_end() const { return !failed_ && rest_.empty(); }
    bool failed() const { return failed_; }

  private:
    Bytes rest_;
    bool failed_ = false;
};

}  // namespace runnel::decode
