// A draft source that knows the toy model (toy_backend.h) and errs with a given probability.
#pragma once

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "engine/decode/speculation/draft_source.h"
#include "tests/support/toy_backend.h"

namespace runnel::testing {

struct ToyDraftOptions {
    int32_t vocab;
    double error = 0.3;    // probability of a random token
    double silence = 0.2;  // probability of no draft, and of an end at each token
    double spread = 0;     // how far its logits are from the model's
    double doubt = 0;      // probability of a branch at each token: the token that an error replaced, or
                           // the second choice, and a few tokens after that
    bool with_distributions = false;
    bool lies = false;  // the reported distributions are the model's, not those that were drawn from
};

class ToyDraft final : public decode::DraftSource {
  public:
    ToyDraft(const ToyDraftOptions &options, uint32_t seed) : options_(options), rng_(seed) {}

    decode::Draft draft(std::span<const decode::TokenId> text, int32_t most, float,
                        decode::Sampler &sampler) override {
        decode::Draft draft;
        std::vector<decode::TokenId> prefix(text.begin(), text.end());
        while (static_cast<int32_t>(draft.tokens.size()) < most && !chance(options_.silence)) {
            const decode::Distribution &from = sampler.distribution(logits(prefix, options_.spread), prefix);
            decode::TokenId id = sampler.draw(prefix.size());
            const decode::TokenId first = id, second = sampler.second(prefix.size(), id);
            if (chance(options_.error))
                id = static_cast<decode::TokenId>(rng_() % static_cast<uint32_t>(options_.vocab));
            draft.tokens.push_back(id);
            draft.probabilities.push_back(static_cast<float>(from.probability_of(id)));
            if (options_.with_distributions)
                draft.distributions.push_back(options_.lies ? sampler.distribution(logits(prefix, 0), prefix)
                                                            : from);
            if (options_.doubt > 0 && chance(options_.doubt))
                add_branch(draft, prefix, id == first ? second : first, most, sampler);
            prefix.push_back(id);
        }
        return draft;
    }
    std::string_view name() const override { return "toy"; }

  private:
    void add_branch(decode::Draft &draft, std::vector<decode::TokenId> prefix, decode::TokenId id,
                    int32_t most, decode::Sampler &sampler) {
        if (id == text::kNoToken || id == draft.tokens.back()) return;
        decode::Branch branch{draft.tokens.size() - 1, {}, {}};
        const size_t length = std::min<size_t>(1 + rng_() % 4, static_cast<size_t>(most) - branch.shared);
        while (branch.tokens.size() < length) {
            branch.tokens.push_back(id);
            branch.probabilities.push_back(0.5f);
            prefix.push_back(id);
            sampler.distribution(logits(prefix, options_.spread), prefix);
            id = sampler.draw(prefix.size());
        }
        draft.branches.push_back(std::move(branch));
    }
    bool chance(double probability) { return std::uniform_real_distribution<double>()(rng_) < probability; }

    std::vector<float> logits(const std::vector<decode::TokenId> &prefix, double spread) const {
        const uint64_t hash = hash_tokens(prefix);
        std::vector<float> row(static_cast<size_t>(options_.vocab));
        for (int32_t id = 0; id < options_.vocab; ++id)
            row[static_cast<size_t>(id)] =
                toy_logit(hash, id) + static_cast<float>(spread) * toy_logit(hash + 1, id);
        return row;
    }

    ToyDraftOptions options_;
    std::mt19937 rng_;
};

}  // namespace runnel::testing
