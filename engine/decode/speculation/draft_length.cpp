#include "engine/decode/speculation/draft_length.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace runnel::decode {
namespace {

constexpr double kBeginning = 1.5;  // plain steps in the account at first
constexpr double kPaidIn = 0.015;   // of every pass
constexpr double kMostHeld = 2.5;   // times the dearest draft

// What k drafted tokens cost beyond the pass that is due anyway.
double extra(const PassCosts &costs, int32_t k, int32_t beside) {
    return costs.seconds(beside + 1 + k) - costs.seconds(beside + 1);
}

}  // namespace

// The best length so far, found by trying one after the other.
struct DraftLength::Choice {
    double others;  // tokens that the pass yields without this sequence
    int32_t best = 0;
    double rate = 0;  // tokens per second of it
    double tokens = 1, all_right = 1;

    void next(double acceptance) {
        all_right *= acceptance;
        tokens += all_right;
    }
    void consider(int32_t k, double seconds) {
        const double mine = (others + tokens) / seconds;
        if (mine <= rate) return;
        rate = mine;
        best = k;
    }
};

double DraftLength::balance(const PassCosts &costs) const {
    return account_ + kBeginning * costs.seconds(1);
}

int32_t DraftLength::trusted() const {
    if (drafting_.empty()) return 1;  // nobody knows what a token costs
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
    for (int32_t k = 1; k <= most; ++k) {
        choice.next(acceptance);
        if (k < least) continue;
        const double spent = extra(costs, k, beside) + k * each;
        if (spent > money) break;
        affordable = k;
        choice.consider(k, pass + spent);
    }
    // A source that costs nothing may show what it has: keep() decides.
    return each * affordable < 0.02 * pass ? affordable : choice.best;
}

int32_t DraftLength::keep(const PassCosts &costs, std::span<const float> probabilities,
                          int32_t beside) const {
    const auto count = static_cast<int32_t>(std::min<size_t>(probabilities.size(), INT32_MAX));
    const int32_t least = std::max(options_.least, 1);
    if (count < least) return 0;
    if (options_.fixed) return count;
    const double spent = count * draft_seconds();
    const double pass = costs.seconds(beside + 1) + spent, money = balance(costs) - spent;
    Choice choice{.others = static_cast<double>(beside)};
    choice.consider(0, pass);
    for (int32_t k = 1; k <= count; ++k) {
        choice.next(acceptance_.of(probabilities[static_cast<size_t>(k - 1)]));
        if (k < least) continue;
        const double more = extra(costs, k, beside);
        if (more > money) break;
        choice.consider(k, pass + more);
    }
    return choice.best;
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
    else if (!round.probabilities.empty())  // a source that had nothing to say was not wrong
        acceptance_.idle(round.probabilities.front());
    account_ += kPaidIn * pass / (round.beside + 1);
    if (round.asked > 0) account_ -= std::max(drafted, 1.0) * draft_seconds();
    account_ -= extra(costs, round.verified, round.beside);
    account_ += round.accepted * pass / (round.beside + 1);
    const double dearest = costs.seconds(1 + options_.most) + options_.most * draft_seconds();
    account_ = std::min(account_, kMostHeld * dearest);
}

}  // namespace runnel::decode
