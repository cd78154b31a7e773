#include "engine/measure/synthetic_draft.h"

#include <algorithm>

#include "engine/decode/random.h"

namespace runnel::measure {

Draft SyntheticDraft::draft(std::span<const TokenId> text, int32_t most, float, Sampler &) {
    using decode::Draw;
    constexpr uint32_t kStream = 0xd1a1;  // a stream that no completion uses
    Draft draft;
    if (text.empty() || text.size() >= truth_.size() || text.back() != truth_[text.size() - 1]) return draft;
    const size_t end = std::min(truth_.size(), text.size() + static_cast<size_t>(std::max(most, 0)));
    for (size_t at = text.size(); at < end; ++at) {
        const auto chance = [&](Draw draw) {
            return decode::uniform(seed_, kStream, static_cast<uint32_t>(at), draw);
        };
        const bool right = chance(Draw::Acceptance) < acceptance_;
        if (second_) {
            const bool second_right = !right && chance(Draw::Residual) < *second_;
            draft.branches.push_back(
                {draft.tokens.size(), {second_right ? truth_[at] : (truth_[at] + 2) % vocab_}, {1}});
        }
        draft.tokens.push_back(right ? truth_[at] : (truth_[at] + 1) % vocab_);
        draft.probabilities.push_back(1);
    }
    return draft;
}

}  // namespace runnel::measure
