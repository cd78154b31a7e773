#include "engine/measure/block_cost.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/decode/single_sequence.h"
#include "engine/decode/speculation/drafting.h"
#include "engine/measure/median.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

using decode::Engine, decode::SingleSequence, decode::StateDrafter, decode::StopRequest, decode::TokenId;

// Seconds of `work`, which returns false when a stop was requested.
double timed(const std::function<bool()> &work) {
    const auto start = base::Clock::now();
    if (!work()) throw base::Interrupted{};
    return base::seconds_since(start);
}

// The cost for a number of tokens between the measured ones.
double at(const std::array<double, kBlockRows> &costs, double tokens) {
    const double place = std::clamp(tokens, 1.0, double{kBlockRows}) - 1;
    const auto below = static_cast<size_t>(std::min(std::floor(place), double{kBlockRows - 2}));
    return costs[below] + (place - static_cast<double>(below)) * (costs[below + 1] - costs[below]);
}

}  // namespace

double block_gain(const BlockCost &cost, double acceptance, int32_t length) {
    double tokens = 1, right = 1;  // a pass gives the accepted tokens and one more
    for (int32_t i = 0; i < length; ++i) tokens += right *= acceptance;
    const double pass = cost.passes[static_cast<size_t>(length)];
    return tokens / (pass + (cost.at_once ? 1 : length) * cost.step + at(cost.catch_up, tokens));
}

BlockCost measure_block(Engine &engine, const std::vector<TokenId> &prompt, int32_t repetitions,
                        const StopRequest &stop) {
    const std::unique_ptr<StateDrafter> block = decode::state_drafter(engine, 1);
    SingleSequence sequence(engine.executor());
    if (!sequence.feed(prompt, &stop)) throw base::Interrupted{};
    const decode::SequenceCache *cache = &sequence.sequence().cache();
    const int32_t most = block->at_once() ? kBlockRows - 1 : 1;
    const auto begin = [&] { return block->begin({&cache, 1}, most, stop.flag()); };
    const StateDrafter::Next next{0, prompt.back()};
    const auto step = [&] { return !block->step({&next, 1}).empty(); };
    if (!begin() || !step()) throw base::Interrupted{};
    std::array<std::vector<double>, kBlockRows> passes, catch_up;
    std::vector<double> steps, step_seconds, plain_seconds;
    for (int32_t i = 0; i < repetitions; ++i) {
        double plain = 0;
        for (size_t n = 0; n < kBlockRows; ++n) {
            std::vector<TokenId> tokens;  // different ones, which choose different experts
            for (size_t j = 0; j <= n; ++j)
                tokens.push_back(prompt[(static_cast<size_t>(i) * kBlockRows + j) % prompt.size()]);
            sequence.entry().append(tokens, static_cast<int32_t>(n) + 1);
            const double pass = timed([&] { return sequence.compute(&stop); });
            if (n == 0) plain = pass, plain_seconds.push_back(pass);
            passes[n].push_back(pass / plain);
            catch_up[n].push_back(timed(begin) / plain);
            step_seconds.push_back(timed(step));
            steps.push_back(step_seconds.back() / plain);
        }
    }
    BlockCost cost{{}, median(steps), {}, median(step_seconds), median(plain_seconds), block->at_once()};
    for (size_t n = 0; n < kBlockRows; ++n)
        cost.passes[n] = median(passes[n]), cost.catch_up[n] = median(catch_up[n]);
    return cost;
}

}  // namespace runnel::measure
