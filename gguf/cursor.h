// Reads little-endian fields one after the other from unchecked bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace runnel::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF fields are copied as they lie in the file");

// The bytes violate the format. Internal to gguf/: File::open adds the file's name and throws FileError.
class Malformed : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class Cursor {
  public:
    explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

    uint64_t at() const { return at_; }
    uint64_t remaining() const { return bytes_.size() - at_; }

    // Each throws Malformed if fewer bytes than needed are left.
    template <class T>
    T read() {
        static_assert(std::is_arithmetic_v<T>);
        T value;
        std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
        return value;
    }

    std::string_view read_string() {
        const auto chars = take(read<uint64_t>());
        return {reinterpret_cast<const char *>(chars.data()), chars.size()};
    }

    std::span<const std::byte> take(uint64_t count) {
        if (count > remaining()) throw Malformed(beyond_end(count));
        at_ += count;
        return bytes_.subspan(at_ - count, count);
    }

    // Throws Malformed if `count` items cannot fit in the remaining bytes. Called before allocating for them.
    void expect(uint64_t count, uint64_t smallest, std::string_view things) const {
        if (count > remaining() / smallest)
            throw Malformed(std::to_string(count) + " " + std::string(things) + " at byte " +
                            std::to_string(at_) + " cannot fit in the " + std::to_string(remaining()) +
                            " bytes that follow (truncated or damaged)");
    }

  private:
    std::string beyond_end(uint64_t count) const {
        return std::to_string(count) + " bytes at byte " + std::to_string(at_) +
               " reach beyond the end at byte " + std::to_string(bytes_.size()) + " (truncated or damaged)";
    }

    std::span<const std::byte> bytes_;
    uint64_t at_ = 0;
};

}  // namespace runnel::gguf
