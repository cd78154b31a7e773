// The candidates for the next token, and the filters that remove some of them. Formulas in sampler.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/token.h"

namespace runnel::decode {

struct TokenProb {
    text::TokenId id;
    float logit;         // after the chain, before the temperature
    double probability;  // after the chain
};

// Probabilities sum to 1. Candidates are sorted by descending logit, or by id when no filter was on.
struct Distribution {
    std::vector<TokenProb> candidates;

    double probability_of(text::TokenId id) const;  // 0 for tokens that are not candidates
    // The token at `uniform` in [0, 1) of the cumulative distribution.
    text::TokenId pick(double uniform) const;
};

// The order of candidates: by descending logit, then by id.
bool by_logit(const TokenProb &a, const TokenProb &b);

// Every filter keeps at least one candidate. Precondition of every filter: the set is not empty.
class CandidateSet {
  public:
    Distribution distribution;
    bool sorted = false;     // by by_logit
    double temperature = 1;  // the product so far, by which the logits are still to be divided

    void clear();
    std::vector<TokenProb> &all() { return distribution.candidates; }
    const std::vector<TokenProb> &all() const { return distribution.candidates; }

    // Fills the probabilities at `temperature`; returns the log of the sum of exp(logit / temperature).
    double softmax();
    void sort();
    void keep_top_k(int32_t k);
    void keep_typical(float mass);
    void keep_top_p(float mass);
    void keep_min_p(float share);
    void keep_top_n_sigma(float n);
    void exclude_top(float threshold);  // XTC
    void keep_best();
    // Multiplies the temperature by a value from low to high that grows with the entropy; at 0, keep_best().
    void scale_by_entropy(double low, double high, float exponent);
    // Mirostat 2 and 1. `mu`: the largest surprise (-log2 p) in bits; `vocab`: size of the vocabulary.
    void keep_surprise_up_to(double mu);
    void keep_mirostat_top_k(double mu, int32_t vocab);
    // adaptive-p: replaces the logits by values that are largest for probabilities near `target`. Returns
    // the probabilities before the change, in the order of the candidates.
    std::vector<double> prefer_probability(double target);
    // Divides the logits by the temperature, which becomes 1.
    void apply_temperature();

  private:
    float largest_logit() const;
};

}  // namespace runnel::decode
