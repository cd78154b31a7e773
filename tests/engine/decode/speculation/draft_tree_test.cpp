#include "engine/decode/speculation/draft_tree.h"

#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "engine/decode/speculation/draft_length.h"
#include "tests/support/random.h"

using namespace runnel::decode;
using runnel::testing::Random;

namespace {

struct Odds {
    std::vector<double> chain;
    std::vector<BranchOdds> branches;
};

// First choices are right more often than not, so a branch never begins with the more probable token.
Odds random_odds(Random &random, size_t most_branches) {
    Odds odds;
    const size_t length = 1 + random.below(5), count = random.below(most_branches + 1);
    for (size_t i = 0; i < length; ++i) odds.chain.push_back(0.5 + 0.5 * double{random.uniform()});
    for (size_t b = 0; b < count; ++b) {
        BranchOdds branch{static_cast<size_t>(random.below(length)), {}};
        const size_t tokens = 1 + random.below(3);
        for (size_t i = 0; i < tokens; ++i) branch.right.push_back(double{random.uniform()});
        odds.branches.push_back(branch);
    }
    return odds;
}

// The expected number of tokens that a pass yields beyond the first, by its definition.
double expected(const Odds &odds, const DraftShape &shape) {
    double sum = 0, reached = 1;
    std::vector<double> before;  // probability that the chain is right before each of its tokens
    for (int32_t i = 0; i < shape.length; ++i) {
        before.push_back(reached);
        sum += reached *= odds.chain[static_cast<size_t>(i)];
    }
    for (size_t b = 0; b < odds.branches.size(); ++b) {
        const BranchOdds &branch = odds.branches[b];
        if (shape.branches[b] == 0) continue;
        double p = before.at(branch.shared) * (1 - odds.chain[branch.shared]);
        for (int32_t i = 0; i < shape.branches[b]; ++i) sum += p *= branch.right[static_cast<size_t>(i)];
    }
    return sum;
}

// The yield of the best tree with `guesses` nodes.
double best_of(const Odds &odds, int32_t guesses) {
    double best = 0;
    DraftShape shape{0, std::vector<int32_t>(odds.branches.size(), 0)};
    const std::function<void(size_t, int32_t)> fill = [&](size_t b, int32_t left) {
        if (b == odds.branches.size()) {
            if (left == 0) best = std::max(best, expected(odds, shape));
            return;
        }
        const BranchOdds &branch = odds.branches[b];
        const auto most =
            branch.shared < static_cast<size_t>(shape.length) ? static_cast<int32_t>(branch.right.size()) : 0;
        for (shape.branches[b] = 0; shape.branches[b] <= std::min(most, left); ++shape.branches[b])
            fill(b + 1, left - shape.branches[b]);
        shape.branches[b] = 0;
    };
    for (shape.length = 0; shape.length <= static_cast<int32_t>(odds.chain.size()); ++shape.length)
        if (shape.length <= guesses) fill(0, guesses - shape.length);
    return best;
}

}  // namespace

TEST_CASE("draft tree: the chosen tree yields the most tokens among all trees of its size") {
    for (uint64_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const Odds odds = random_odds(random, 3);
        DraftTree tree(odds.chain, odds.branches, odds.branches.size());
        double sum = 0, last = 1;
        int32_t guesses = 0;
        while (const double p = tree.grow()) {
            CHECK(p <= last);
            last = p;
            sum += p;
            CHECK(tree.shape().guesses() == ++guesses);
            CHECK(sum == doctest::Approx(expected(odds, tree.shape())));
            CHECK(sum == doctest::Approx(best_of(odds, guesses)));
        }
        size_t all = odds.chain.size();
        for (const BranchOdds &branch : odds.branches) all += branch.right.size();
        CHECK(static_cast<size_t>(guesses) == all);
    }
}

TEST_CASE("draft tree: no more branches than allowed, and each beside a drafted token") {
    for (uint64_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Odds odds = random_odds(random, 6);
        for (double &p : odds.chain) p = double{random.uniform()};
        const size_t most = random.below(4);
        DraftTree tree(odds.chain, odds.branches, most);
        while (tree.grow() > 0) {
            size_t begun = 0;
            for (size_t b = 0; b < odds.branches.size(); ++b) {
                begun += tree.shape().branches[b] > 0;
                if (tree.shape().branches[b] > 0)
                    CHECK(static_cast<size_t>(tree.shape().length) > odds.branches[b].shared);
            }
            CHECK(begun <= most);
        }
    }
}

// --- the choice ------------------------------------------------------------------------------------------

namespace {

constexpr Pass kSteep[] = {{1, 1}, {2, 1.5}, {4, 2.6}, {8, 3.7}, {16, 5.8}, {32, 9.4}};  // two cores
constexpr Pass kFlat[] = {{1, 1}, {2, 1.02}, {4, 1.05}, {8, 1.1}, {16, 1.3}, {32, 2}};   // a GPU

struct Outcome {
    double tokens = 0, seconds = 0, branches = 0, passes = 0;
    double rate() const { return tokens / seconds; }
};

// Tokens are right with probability `first`; where one is not, the second choice is right with probability
// `second`.
Outcome simulate(const PassCosts &costs, double first, double second, int32_t most_branches, uint64_t seed) {
    Random random(seed);
    DraftLength length({.most = 16, .branches = most_branches});
    Outcome out;
    for (int pass = 0; pass < 3000; ++pass) {
        DraftLength::Round round;
        round.asked = length.ask(costs, 1000);
        const std::vector<float> said(static_cast<size_t>(round.asked), 0.5f);
        std::vector<Branch> branches;
        for (size_t i = 0; i < said.size(); ++i) branches.push_back({i, {1}, {0.5f}});
        const DraftShape shape = length.shape(costs, said, branches);
        round.probabilities = said;
        round.verified = shape.length;
        round.in_branches = shape.in_branches();
        while (round.accepted < round.verified && double{random.uniform()} < first) ++round.accepted;
        if (round.accepted < round.verified) {
            round.second = {0.5f, double{random.uniform()} < second};
            const bool tried = shape.branches[static_cast<size_t>(round.accepted)] > 0;
            round.from_branches = tried && round.second->right ? 1 : 0;
        }
        out.tokens += 1 + round.accepted + round.from_branches;
        out.seconds += costs.seconds(1 + shape.guesses());
        out.branches += shape.in_branches();
        out.passes += 1;
        length.record(costs, round);
    }
    return out;
}

}  // namespace

TEST_CASE("draft length: trees if large passes are cheap and second choices good, otherwise chains") {
    for (uint64_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        const PassCosts flat(kFlat), steep(kSteep);
        // Half of the first choices are right, and most of the second choices where the first are not.
        const Outcome tree = simulate(flat, 0.5, 0.8, 4, seed), chain = simulate(flat, 0.5, 0.8, 1, seed);
        CHECK(tree.branches / tree.passes > 1);
        CHECK(chain.branches == 0);
        CHECK(tree.rate() > 1.15 * chain.rate());
        // Second choices that are never right soon stop being verified, on this device as well.
        const Outcome useless = simulate(flat, 0.5, 0, 4, seed);
        CHECK(useless.branches / useless.passes < 0.3);
        CHECK(useless.rate() > 0.97 * simulate(flat, 0.5, 0, 1, seed).rate());
        // If every token of a pass costs much, a chain of the most probable tokens does better.
        const Outcome dear = simulate(steep, 0.8, 0.5, 4, seed);
        CHECK(dear.branches / dear.passes < 0.1);
        CHECK(dear.rate() > 0.97 * simulate(steep, 0.8, 0.5, 1, seed).rate());
    }
}
