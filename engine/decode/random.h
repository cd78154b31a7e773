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
enum class Draw : uint32_t { Token = 0, Acceptance = 1, Residual = 2 };

// Uniform in [0, 1), a multiple of 2^-53. `stream` tells sequences of one seed apart; `position` is the index
// of the token in its sequence.
double uniform(uint64_t seed, uint32_t stream, uint32_t position, Draw purpose = Draw::Token) noexcept;

// A seed that differs from call to call.
uint64_t random_seed();

}  // namespace runnel::decode
