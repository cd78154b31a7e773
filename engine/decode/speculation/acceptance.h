// Estimates how often drafted tokens are accepted, updated while the text grows.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace runnel::decode {

// The share of successes in a stream of trials whose odds may change at any time. Two averages with
// exponential decay, over about 60 and about 7 trials; if they differ by more than three standard deviations
// of the short one, the short one replaces the long one.
class SuccessRate {
  public:
    void add(bool success);
    // For a pass without a trial: earlier trials count as 2.5 at most, and 1.5% less with every call.
    void fade();
    // The estimated share, with a prior of `prior` that weighs as much as `prior_trials` trials.
    double value(double prior, double prior_trials) const;
    // The number of successes, weighted by the decay.
    double successes() const { return long_.successes; }

  private:
    struct Average {
        double successes = 0, trials = 0;

        void add(bool success, double keep);
        double share() const { return trials > 0 ? successes / trials : 0; }
    };
    Average long_, short_;
};

// Calibrates the probabilities that one draft source reports. At first they are nearly taken as reported;
// then the acceptance rate of earlier tokens with about the same reported probability replaces them.
class Acceptance {
  public:
    // The probability that a drafted token is accepted if the tokens before it are.
    double of(float probability) const;
    // That probability for a token that is not drafted yet.
    double typical() const;
    // The number of accepted tokens, weighted by the decay.
    double successes() const { return all_.successes(); }

    // For a verified draft: its first `accepted` tokens were right and the next one, if any, was wrong.
    // Tokens after the wrong one are ignored.
    void add(std::span<const float> probabilities, size_t accepted);
    // For a pass without a draft: the source was not asked, or (with `probability`, that of its first token)
    // its draft was not verified.
    void idle();
    void idle(float probability);

  private:
    static constexpr std::array<float, 8> kBounds{0.2f, 0.4f, 0.6f, 0.75f, 0.85f, 0.92f, 0.97f, 0.995f};
    static size_t bin_of(float probability);

    std::array<SuccessRate, kBounds.size() + 1> bins_;
    SuccessRate all_;
};

}  // namespace runnel::decode
