// Which guesses to verify when there are more of them than pay: a tree, grown by its most probable node.
//
// A pass yields one token, and every guess of its tree with the probability that all guesses down to it are
// right. A tree of n guesses costs PassCosts::seconds(1 + n), whatever its shape, so of all trees of n
// guesses the one with the n most probable nodes is best. (Sequoia, Chen et al. 2024; EAGLE-2, Li et al.
// 2024.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace runnel::decode {

// A draft and what of its branches is verified: the first `length` of its tokens, and so many of each branch.
struct DraftShape {
    int32_t length = 0;
    std::vector<int32_t> branches = {};

    int32_t in_branches() const;
    int32_t guesses() const { return length + in_branches(); }
    bool operator==(const DraftShape &) const = default;
};

// Of a branch (draft_source.h): the first of `right` is the probability that its first token is right if the
// draft's at that place is wrong, others are given that the one before is right.
struct BranchOdds {
    size_t shared;
    std::vector<double> right;
};

class DraftTree {
  public:
    // chain[i]: the probability that token i of the draft is right when those before it are. At most so many
    // branches are begun. Each branch shares fewer tokens than the chain has.
    DraftTree(std::vector<double> chain, std::vector<BranchOdds> branches, size_t most_branches);

    // Adds the most probable node that can be added (a branch begins where the draft goes on, too) and
    // returns its probability; 0 where none is left.
    double grow();
    const DraftShape &shape() const { return shape_; }

  private:
    double next_of(size_t branch) const;

    std::vector<double> chain_;
    std::vector<BranchOdds> branches_;
    size_t most_branches_, begun_ = 0;
    DraftShape shape_;
    std::vector<double> reached_{1};          // probability of the draft's first n tokens
    std::vector<double> branch_probability_;  // of what of each branch is in the tree
};

}  // namespace runnel::decode
