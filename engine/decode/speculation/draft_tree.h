// Chooses the guesses to verify when not all of them pay: a tree that grows by the most probable node.
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

// The part of a draft to verify: its first `length` tokens, and the first branches[i] tokens of branch i.
struct DraftShape {
    int32_t length = 0;
    std::vector<int32_t> branches = {};

    int32_t in_branches() const;
    int32_t guesses() const { return length + in_branches(); }
    bool operator==(const DraftShape &) const = default;
};

// Probabilities for a branch (draft_source.h). right[0]: its first token is right, given that the draft's
// token there is wrong; right[i]: token i is right, given that those before it are.
struct BranchOdds {
    size_t shared;
    std::vector<double> right;
};

class DraftTree {
  public:
    // chain[i]: the probability that token i of the draft is right when those before it are. At most
    // `most_branches` branches are begun. Each branch shares fewer tokens than the chain has.
    DraftTree(std::vector<double> chain, std::vector<BranchOdds> branches, size_t most_branches);

    // Adds the most probable node that can be added (a branch can begin only where the draft's own token is
    // in the tree) and returns its probability; 0 if none is left.
    double grow();
    const DraftShape &shape() const { return shape_; }

  private:
    double next_of(size_t branch) const;

    std::vector<double> chain_;
    std::vector<BranchOdds> branches_;
    size_t most_branches_, begun_ = 0;
    DraftShape shape_;
    std::vector<double> reached_{1};          // probability of the draft's first n tokens
    std::vector<double> branch_probability_;  // that the tokens of a branch in the tree are right
};

}  // namespace runnel::decode
