// A fast checksum of many bytes (XXH3): finds damage, not malice.
#pragma once

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t as a member
#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace runnel::base {

// A 128-bit hash of all bytes added, independent of how they are split over calls.
class Checksum {
  public:
    using Value = std::array<uint64_t, 2>;

    Checksum() { XXH3_128bits_reset(&state_); }

    void add(std::span<const std::byte> bytes) { XXH3_128bits_update(&state_, bytes.data(), bytes.size()); }
    template <typename T>
    void add_value(const T &value) {
        add(std::as_bytes(std::span(&value, 1)));
    }
    Value value() const {
        const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
        return {hash.low64, hash.high64};
    }

  private:
    XXH3_state_t state_;
};

}  // namespace runnel::base
