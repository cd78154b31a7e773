// What a pass of n tokens costs on this machine: the exchange rate of speculation.
//
// A pass reads all weights once, however many tokens it computes, but its arithmetic grows with them. How a
// pass of 8 compares with one of 1 depends on the machine, the model and its format, so it is measured, for a
// few sizes, where the sequence stands (attention reads more at greater depth), and corrected by the passes
// that follow.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/decode/sequence.h"
#include "engine/decode/speculation/running_median.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

struct Pass {
    int32_t tokens;
    double seconds;
};

class PassCosts {
  public:
    // The sizes that are told apart; between them costs are interpolated, behind the last one they grow as
    // between the last two.
    static constexpr std::array<int32_t, 10> kSizes{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

    // Nothing measured: the shape of a common machine, in units that the first observation sets.
    PassCosts();
    // From measured passes: at least one; of several of a size, the median. Sizes that are missing are
    // interpolated; sizes of which the larger came out cheaper share their mean. Preconditions: tokens >= 1,
    // seconds > 0.
    explicit PassCosts(std::span<const Pass> measured);

    // Seconds of a pass of `tokens` (>= 1): as measured, times the median of what the last passes of about
    // that size took in proportion to it, or of all last passes where that size has not been seen lately.
    double seconds(int32_t tokens) const;

    // A pass of the sequence took so long.
    void observe(const Pass &pass);

  private:
    struct Correction {
        RunningMedian<7> ratio;
        uint64_t last = 0;  // passes_ when it was added to
    };
    double correction(size_t size) const;

    std::array<double, kSizes.size()> measured_, seconds_;  // of kSizes: at first, and corrected
    std::array<Correction, kSizes.size()> corrections_{};
    RunningMedian<15> all_;
    uint64_t passes_ = 0;
};

// Times passes behind the tokens that `sequence` has in the cache, on a fork of it. It takes as long as some
// `steps` passes of one token, but at least two of these and, where there is room, one of 4 tokens; the most
// telling sizes come first. The sequence stays as it is. The weights should be in memory already (a prompt has
// been computed). What cannot be measured (no room left, a stop requested) is left out. Throws BackendError.
PassCosts measure_pass_costs(const Sequence &sequence, double steps = 10, const StopRequest *stop = nullptr,
                             int32_t candidates = 0);

}  // namespace runnel::decode
