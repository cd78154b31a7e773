#include "engine/decode/random.h"

#include <bit>
#include <cmath>

namespace runnel::decode {
namespace {

std::array<uint32_t, 2> key_of(uint64_t seed) noexcept {
    return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) noexcept {
    constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
    constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = kMultiplier0 * counter[0], p1 = kMultiplier1 * counter[2];
        counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
                   static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
        key[0] += kWeyl0;
        key[1] += kWeyl1;
    }
    return counter;
}

double uniform(uint64_t seed, uint32_t stream, uint32_t position, Draw purpose) noexcept {
    const auto words = philox({position, stream, static_cast<uint32_t>(purpose), 0}, key_of(seed));
    const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

uint32_t GumbelNoise::head(uint32_t id) noexcept {
    if (id / 4 != block_) {
        block_ = id / 4;
        words_ = philox({position_, stream_, static_cast<uint32_t>(Draw::NoiseHead), block_}, key_of(seed_));
    }
    return words_[id % 4];
}

double GumbelNoise::value(uint32_t id) noexcept {
    const uint32_t tail =
        philox({position_, stream_, static_cast<uint32_t>(Draw::NoiseTail), id}, key_of(seed_))[0] >> 12;
    const uint64_t k = uint64_t{head(id)} << 20 | tail;
    const double u = (static_cast<double>(k) + 0.5) * 0x1p-52;
    return -std::log(-std::log1p(-u));
}

// -log(1 - u) >= u >= 2^-n, where n is the place of the first 1 in u's bits, so g <= n log 2.
double GumbelNoise::bound(uint32_t id) noexcept {
    constexpr double kLog2 = 0.6931471805599453, kRounding = 1e-9;
    const uint32_t bits = head(id);
    return kLog2 * (bits == 0 ? 53 : std::countl_zero(bits) + 1) + kRounding;
}

}  // namespace runnel::decode
