// A fast checksum of many bytes: finds damage, not malice.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "gguf/base/hash.h"

namespace runnel::decode {

// 128 bits over all bytes that were added, in whatever pieces.
class Checksum {
  public:
    using Value = std::array<uint64_t, 2>;

    void add(std::span<const std::byte> bytes) {
        length_ += bytes.size();
        if (filled_ > 0) {
            const size_t count = std::min(bytes.size(), kPiece - filled_);
            std::memcpy(piece_.data() + filled_, bytes.data(), count);
            filled_ += count;
            bytes = bytes.subspan(count);
            if (filled_ < kPiece) return;
            mix(piece_.data());
            filled_ = 0;
        }
        for (; bytes.size() >= kPiece; bytes = bytes.subspan(kPiece)) mix(bytes.data());
        std::copy(bytes.begin(), bytes.end(), piece_.begin());
        filled_ = bytes.size();
    }
    template <typename T>
    void add_value(const T &value) {
        add(std::as_bytes(std::span(&value, 1)));
    }
    Value value() const {
        Checksum last = *this;
        std::fill(last.piece_.begin() + static_cast<std::ptrdiff_t>(filled_), last.piece_.end(),
                  std::byte{0});
        last.mix(last.piece_.data());
        last.state_[0] ^= length_;
        last.mix(last.piece_.data());
        return last.state_;
    }

  private:
    static constexpr size_t kPiece = 16;

    void mix(const std::byte *at) {  // two chains of multiplications, side by side
        uint64_t low, high;
        std::memcpy(&low, at, sizeof low);
        std::memcpy(&high, at + sizeof low, sizeof high);
        state_ = {base::fold(state_[0] ^ low, 0x9e3779b97f4a7c15) + high,
                  base::fold(state_[1] + high, 0x94d049bb133111eb) ^ low};
    }

    Value state_{0x243f6a8885a308d3, 0x13198a2e03707344};
    std::array<std::byte, kPiece> piece_{};
    size_t filled_ = 0;
    uint64_t length_ = 0;
};

}  // namespace runnel::decode
