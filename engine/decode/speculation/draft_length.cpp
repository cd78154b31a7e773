#include "engine/decode/speculation/draft_length.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

namespace runnel::decode {
namespace {

constexpr double kBeginning = 1.0;   // plain steps in the account at first
constexpr double kPaidIn = 0.006;    // share of every pass's time
constexpr double kMostHeld = 2.5;    // limit of the account, in costs of the longest draft
constexpr double kLeastCost = 0.02;  // of a token in a draft, in plain steps

// What k drafted tokens cost beyond the pass that is due anyway. On a busy machine, a larger pass may seem to
// cost no more than a smaller one; without a least cost, such drafts would be tried forever.
double extra(const PassCosts &costs, int32_t k, int32_t beside) {
    return std::max(costs.seconds(beside + 1 + k) - costs.seconds(beside + 1),
                    kLeastCost * k * costs.seconds(1));
}

}  // namespace

// The best number of guesses among those considered so far.
struct DraftLength::Choice {
    double others;  // tokens that the pass yields without this sequence
    int32_t best = 0;
    double rate = 0;  // tokens per second with `best` guesses
    double tokens = 1;

    // True when k guesses are better than all numbers considered before.
    bool consider(int32_t k, double seconds) {
        const double mine = (others + tokens) / seconds;
        if (mine <= rate) return false;
        rate = mine;
        best = k;
        return true;
    }
};

double DraftLength::balance(const PassCosts &costs) const {
    return account_ + kBeginning * costs.seconds(1);
}

int32_t DraftLength::trusted() const {
    if (drafting_.empty()) return 1;  // the cost of drafting a token is not known yet
    return 1 + static_cast<int32_t>(2 * std::min(acceptance_.successes(), 1e6));
}

int32_t DraftLength::ask(const PassCosts &costs, int32_t room, int32_t beside) const {
    const int32_t least = std::max(options_.least, 1);
    const int32_t room_for = std::min(options_.most, room);
    if (room_for < least) return 0;
    if (options_.fixed) return room_for;
    const int32_t most = std::min(room_for, std::max(least, trusted()));
    const double pass = costs.seconds(beside + 1), money = balance(costs);
    const double acceptance = acceptance_.typical(), each = draft_seconds();
    Choice choice{.others = static_cast<double>(beside)};
    choice.consider(0, pass);
    int32_t affordable = 0;
    double all_right = 1;
    for (int32_t k = 1; k <= most; ++k) {
        choice.tokens += all_right *= acceptance;
        if (k < least) continue;
        const double spent = extra(costs, k, beside) + k * each;
        if (spent > money) break;
        affordable = k;
        choice.consider(k, pass + spent);
    }
    // An almost free source drafts all that is affordable: shape() then chooses among the tokens.
    return each * affordable < 0.02 * pass ? affordable : choice.best;
}

DraftTree DraftLength::tree(std::span<const float> probabilities, std::span<const Branch> branches) const {
    std::vector<double> chain;
    for (const float p : probabilities) chain.push_back(acceptance_.of(p));
    std::vector<BranchOdds> odds;
    for (const Branch &branch : branches) {
        odds.push_back({branch.shared, {second_choices_.of(branch.probabilities[0])}});
        for (size_t i = 1; i < branch.tokens.size(); ++i)
            odds.back().right.push_back(acceptance_.of(branch.probabilities[i]));
    }
    return DraftTree(std::move(chain), std::move(odds), static_cast<size_t>(options_.branches - 1));
}

DraftShape DraftLength::shape(const PassCosts &costs, std::span<const float> probabilities,
                              std::span<const Branch> branches, int32_t beside) const {
    const auto count = static_cast<int32_t>(std::min<size_t>(probabilities.size(), INT32_MAX));
    const int32_t least = std::max(options_.least, 1);
    DraftShape best{0, std::vector<int32_t>(branches.size(), 0)};
    if (count < least) return best;
    if (options_.fixed) {
        best.length = count;
        return best;
    }
    const double spent = count * draft_seconds();
    const double pass = costs.seconds(beside + 1) + spent, money = balance(costs) - spent;
    DraftTree growing = tree(probabilities, branches);
    Choice choice{.others = static_cast<double>(beside)};
    choice.consider(0, pass);
    for (int32_t k = 1; k <= std::max(options_.most, count); ++k) {
        const double probability = growing.grow();
        if (!(probability > 0)) break;
        choice.tokens += probability;
        if (k < least) continue;
        const double more = extra(costs, k, beside);
        if (more > money) break;
        if (choice.consider(k, pass + more)) best = growing.shape();
    }
    return best;
}

void DraftLength::record(const PassCosts &costs, const Round &round) {
    assert(round.accepted <= round.verified);
    assert(static_cast<size_t>(round.verified) <= round.probabilities.size());
    const double pass = costs.seconds(round.beside + 1);
    const auto drafted = static_cast<double>(round.probabilities.size());
    if (round.asked > 0 && std::exchange(asked_before_, true))
        drafting_.add(round.draft_seconds / std::max(drafted, 1.0));
    if (round.verified > 0)
        acceptance_.add(round.probabilities.first(static_cast<size_t>(round.verified)),
                        static_cast<size_t>(round.accepted));
    else if (round.asked == 0)
        acceptance_.idle();
    else if (!round.probabilities.empty())  // a source without a draft was not wrong
        acceptance_.idle(round.probabilities.front());
    account_ += kPaidIn * pass / (round.beside + 1);
    if (round.asked > 0) account_ -= std::max(drafted, 1.0) * draft_seconds();
    if (round.second) second_choices_.add({&round.second->probability, 1}, round.second->right ? 1 : 0);
    account_ -= extra(costs, round.verified + round.in_branches, round.beside);
    account_ += (round.accepted + round.from_branches) * pass / (round.beside + 1);
    const double dearest = costs.seconds(1 + options_.most) + options_.most * draft_seconds();
    account_ = std::min(account_, kMostHeld * dearest);
}

}  // namespace runnel::decode
