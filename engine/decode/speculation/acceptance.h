// How often drafted tokens turn out right: estimates that follow a text.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace runnel::decode {

// The share of successes in a stream of trials whose odds may change at any time. Two averages with
// exponential decay, over some 60 and some 7 trials; where they contradict each other (three standard
// deviations of the short one), what was before is forgotten.
class SuccessRate {
  public:
    void add(bool success);
    // Nothing was tried while the text went on: what was seen counts for a few trials, and for less and less.
    void fade();
    // The expected share, with `prior` counted as so many trials.
    double value(double prior, double prior_trials) const;
    // How many there were, faded.
    double successes() const { return long_.successes; }

  private:
    struct Average {
        double successes = 0, trials = 0;

        void add(bool success, double keep);
        double share() const { return trials > 0 ? successes / trials : 0; }
    };
    Average long_, short_;
};

// Of one source of drafts: what its own probabilities are worth. A source that is sure of itself is believed
// at first, and then by what became of tokens of which it was as sure.
class Acceptance {
  public:
    // The probability that a drafted token is accepted, given that those before it were.
    double of(float probability) const;
    // The same, of a token that is not drafted yet.
    double typical() const;
    // Accepted tokens that are still remembered.
    double successes() const { return all_.successes(); }

    // A draft was verified: its first `accepted` tokens were right, and, if there is one, the next was wrong.
    // What follows that one says nothing.
    void add(std::span<const float> probabilities, size_t accepted);
    // A pass without a draft: the source was not asked, or what it offered, of which it was so sure, was not
    // tried.
    void idle();
    void idle(float probability);

  private:
    static constexpr std::array<float, 8> kBounds{0.2f, 0.4f, 0.6f, 0.75f, 0.85f, 0.92f, 0.97f, 0.995f};
    static size_t bin_of(float probability);

    std::array<SuccessRate, kBounds.size() + 1> bins_;
    SuccessRate all_;
};

}  // namespace runnel::decode
