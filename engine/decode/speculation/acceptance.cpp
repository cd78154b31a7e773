#include "engine/decode/speculation/acceptance.h"

#include <algorithm>
#include <cmath>

namespace runnel::decode {
namespace {

constexpr double kKeepLong = 0.983, kKeepShort = 0.85;
constexpr double kDeviations = 3;
constexpr double kPriorTrials = 2;
// Together with the prior: where drafts were always wrong, one is tried again about every 40 passes.
constexpr double kIdleTrials = 2.5, kIdle = 0.985;

// The assumed acceptance of a token reported with `probability`, before any was verified.
double first_belief(float probability) {
    return 0.1 + 0.75 * static_cast<double>(std::clamp(probability, 0.0f, 1.0f));
}

}  // namespace

void SuccessRate::Average::add(bool success, double keep) {
    successes = successes * keep + (success ? 1 : 0);
    trials = trials * keep + 1;
}

void SuccessRate::add(bool success) {
    long_.add(success, kKeepLong);
    short_.add(success, kKeepShort);
    // An average with weights keep^i has the variance p (1 - p) (1 - keep) / (1 + keep); 0.02 keeps the
    // bound above zero where everything was accepted, or nothing.
    const double p = long_.share();
    const double variance = (p * (1 - p) + 0.02) * (1 - kKeepShort) / (1 + kKeepShort);
    const double difference = short_.share() - p;
    if (difference * difference > kDeviations * kDeviations * variance) long_ = short_;
}

void SuccessRate::fade() {
    for (Average *average : {&long_, &short_}) {
        const double factor = kIdle * std::min(1.0, kIdleTrials / std::max(average->trials, 1e-9));
        average->successes *= factor;
        average->trials *= factor;
    }
}

double SuccessRate::value(double prior, double prior_trials) const {
    return (long_.successes + prior * prior_trials) / (long_.trials + prior_trials);
}

size_t Acceptance::bin_of(float probability) {
    return static_cast<size_t>(std::ranges::upper_bound(kBounds, probability) - kBounds.begin());
}

double Acceptance::of(float probability) const {
    return bins_[bin_of(probability)].value(first_belief(probability), kPriorTrials);
}

double Acceptance::typical() const {
    return all_.value(first_belief(1), kPriorTrials);
}

void Acceptance::add(std::span<const float> probabilities, size_t accepted) {
    for (size_t i = 0; i < probabilities.size() && i <= accepted; ++i) {
        bins_[bin_of(probabilities[i])].add(i < accepted);
        all_.add(i < accepted);
    }
}

void Acceptance::idle() {
    for (SuccessRate &rate : bins_) rate.fade();
    all_.fade();
}

void Acceptance::idle(float probability) {
    bins_[bin_of(probability)].fade();
}

}  // namespace runnel::decode
