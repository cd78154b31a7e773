// SHA-256 (FIPS 180-4), the hash that Hugging Face publishes for every large file. The program links no
// cryptographic library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace runnel::commands {

class Sha256 {
  public:
    void add(std::span<const std::byte> bytes);
    // 64 hexadecimal digits in lower case. Ends the computation.
    std::string digest();

  private:
    void add_block(const std::byte *block);

    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> buffer_{};  // the first length_ % 64 bytes count
    uint64_t length_ = 0;
};

}  // namespace runnel::commands
