// What a pass of n tokens costs on this machine, from which speculation decides how much to draft.
//
// A pass reads all weights once, however many tokens it computes, but its arithmetic grows with them. How a
// pass of 8 compares with one of 1 depends on the machine, the model and its format. So it is measured for a
// few sizes, at the current length of the sequence (attention reads more of a longer one), and corrected by
// the passes that follow.
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
    // The sizes whose costs are kept; between them costs are interpolated, above the last one they grow as
    // between the last two.
    static constexpr std::array<int32_t, 10> kSizes{1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

    // Without measurements: the cost ratios of a common machine; the first observation sets the unit.
    PassCosts();
    // From at least one measured pass. A size with several passes gets their median; missing sizes are
    // interpolated. If a larger size is cheaper than a smaller one, both get their mean. Preconditions:
    // tokens >= 1, seconds > 0.
    explicit PassCosts(std::span<const Pass> measured);

    // Seconds of a pass of `tokens` (>= 1): the measured cost times the median ratio of actual to measured
    // time over the last passes of about that size (of any size, if that size was not seen lately).
    double seconds(int32_t tokens) const;

    // Records how long a pass took.
    void observe(const Pass &pass);

  private:
    struct Correction {
        RunningMedian<7> ratio;
        uint64_t last = 0;  // passes_ at the last observation
    };
    double correction(size_t size) const;

    std::array<double, kSizes.size()> measured_, seconds_;  // by size: as measured, and corrected
    std::array<Correction, kSizes.size()> corrections_{};
    RunningMedian<15> all_;
    uint64_t passes_ = 0;
};

// Times passes after the cached tokens of `sequence`, on a fork of it; the sequence does not change. Takes
// about as long as `steps` passes of one token, but at least two of these and, if there is room, one of 4
// tokens; the most informative sizes come first. The weights should be in memory already (from a prompt).
// Sizes that cannot be measured (no room left, a stop requested) are left out. Throws BackendError.
PassCosts measure_pass_costs(const Sequence &sequence, double steps = 10, const StopRequest *stop = nullptr,
                             int32_t candidates = 0);

}  // namespace runnel::decode
