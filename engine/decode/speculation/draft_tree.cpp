#include "engine/decode/speculation/draft_tree.h"

#include <numeric>
#include <utility>

namespace runnel::decode {

int32_t DraftShape::in_branches() const {
    return std::accumulate(branches.begin(), branches.end(), int32_t{0});
}

DraftTree::DraftTree(std::vector<double> chain, std::vector<BranchOdds> branches, size_t most_branches)
    : chain_(std::move(chain)),
      branches_(std::move(branches)),
      most_branches_(most_branches),
      shape_{0, std::vector<int32_t>(branches_.size(), 0)},
      branch_probability_(branches_.size(), 0) {}

// The probability of the branch's next token; 0 if there is none or the branch may not begin yet.
double DraftTree::next_of(size_t branch) const {
    const BranchOdds &odds = branches_[branch];
    const auto taken = static_cast<size_t>(shape_.branches[branch]);
    if (taken == odds.right.size()) return 0;
    if (taken > 0) return branch_probability_[branch] * odds.right[taken];
    if (begun_ == most_branches_ || odds.shared >= static_cast<size_t>(shape_.length)) return 0;
    return reached_[odds.shared] * (1 - chain_[odds.shared]) * odds.right[0];
}

double DraftTree::grow() {
    const auto length = static_cast<size_t>(shape_.length);
    double best = length < chain_.size() ? reached_[length] * chain_[length] : 0;
    size_t at = branches_.size();
    for (size_t b = 0; b < branches_.size(); ++b)
        if (const double next = next_of(b); next > best) {
            best = next;
            at = b;
        }
    if (at == branches_.size()) {
        if (length == chain_.size()) return 0;
        ++shape_.length;
        reached_.push_back(best);
        return best;
    }
    begun_ += shape_.branches[at] == 0;
    ++shape_.branches[at];
    branch_probability_[at] = best;
    return best;
}

}  // namespace runnel::decode
