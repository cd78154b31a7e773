// Random numbers that are a pure function of (seed, stream, position): Philox4x32-10 (Salmon, Moraes, Dror,
// Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
//
// No state is kept between draws, so a sequence gets the same text whatever other sequences run, and a
// roll-back has no state to restore.
#pragma once

#include <array>
#include <cstdint>

namespace runnel::decode {

// One block of four 32-bit words.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) noexcept;

// What a draw is for: draws of different purposes at one position are independent.
enum class Draw : uint32_t { Acceptance = 1, Residual = 2, NoiseHead = 3, NoiseTail = 4, Exclusion = 5 };

// Uniform in [0, 1), a multiple of 2^-53. `stream` tells sequences of one seed apart; `position` is the index
// of the token in its sequence.
double uniform(uint64_t seed, uint32_t stream, uint32_t position, Draw purpose) noexcept;

// Independent noise for every token id at one position, of the standard Gumbel distribution:
// g = -log(-log(1 - u)), u uniform. The id of the largest log p_id + g_id is a draw from p (Gumbel 1954;
// Maddison, Tarlow, Minka: "A* Sampling", 2014), and two distributions that are much alike mostly give the
// same id.
//
// u is (k + 1/2) / 2^52. One block gives the 32 leading bits of k for four neighboring ids; the other 20 bits
// are computed only by value().
class GumbelNoise {
  public:
    GumbelNoise(uint64_t seed, uint32_t stream, uint32_t position) noexcept
        : seed_(seed), stream_(stream), position_(position) {}

    double value(uint32_t id) noexcept;  // in (-3.6, 36.8)
    // An upper bound of value(id) that is much cheaper to compute.
    double bound(uint32_t id) noexcept;

  private:
    uint32_t head(uint32_t id) noexcept;

    uint64_t seed_;
    uint32_t stream_, position_;
    uint32_t block_ = ~uint32_t{0};  // words_ holds this block, of ids 4 * block_ to 4 * block_ + 3
    std::array<uint32_t, 4> words_{};
};

}  // namespace runnel::decode
