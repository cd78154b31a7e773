// Random numbers that are a pure function of (seed, stream, position): Philox4x32-10 (Salmon, Moraes, Dror,
// Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
//
// Nothing is remembered between draws, so a sequence gives the same text whatever runs beside it, and a
// roll-back needs no state to restore.
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
// u is (k + 1/2) / 2^52. The 32 leading bits of four neighboring ids come from one block, the other 20 are
// only computed for ids that they matter to.
class GumbelNoise {
  public:
    GumbelNoise(uint64_t seed, uint32_t stream, uint32_t position) noexcept
        : seed_(seed), stream_(stream), position_(position) {}

    double value(uint32_t id) noexcept;  // in (-3.6, 36.8)
    // Not less than value(id), and much cheaper.
    double bound(uint32_t id) noexcept;

  private:
    uint32_t head(uint32_t id) noexcept;

    uint64_t seed_;
    uint32_t stream_, position_;
    uint32_t block_ = ~uint32_t{0};  // that words_ holds: of ids 4 * block_ and the three behind it
    std::array<uint32_t, 4> words_{};
};

}  // namespace runnel::decode
