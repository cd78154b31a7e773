#include "engine/measure/fetched_experts.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <vector>

#include "engine/decode/single_sequence.h"
#include "gguf/base/interrupted.h"

namespace runnel::measure {
namespace {

using kernels::TracedMixture;

struct Place {
    int32_t expert = -1;
    size_t used_at = 0;  // token, from 1
};

// Experts that a mixture with so many places fetches for each token after the first `warm_up`.
int64_t fetched_by(const TracedMixture &mixture, size_t places, size_t warm_up) {
    const auto used = static_cast<size_t>(mixture.used);
    std::vector<Place> all(places);
    std::vector<int32_t> place_of(static_cast<size_t>(mixture.experts), -1);
    int64_t fetched = 0;
    for (size_t token = 1; token * used <= mixture.chosen.size(); ++token) {
        const auto chosen = std::span(mixture.chosen).subspan((token - 1) * used, used);
        for (const int32_t expert : chosen)
            if (const int32_t place = place_of[static_cast<size_t>(expert)]; place >= 0)
                all[static_cast<size_t>(place)].used_at = token;
        for (const int32_t expert : chosen) {
            if (place_of[static_cast<size_t>(expert)] >= 0) continue;
            const auto oldest = std::ranges::min_element(all, {}, &Place::used_at);
            if (oldest->expert >= 0) place_of[static_cast<size_t>(oldest->expert)] = -1;
            *oldest = {expert, token};
            place_of[static_cast<size_t>(expert)] = static_cast<int32_t>(oldest - all.begin());
            fetched += token > warm_up;
        }
    }
    return fetched;
}

}  // namespace

ExpertTrace trace_choices(decode::Engine &engine, std::span<const text::TokenId> tokens,
                          const decode::StopRequest &stop) {
    const auto trace = std::make_shared<ExpertTrace>();
    const auto cells = static_cast<int32_t>(tokens.size());
    decode::Executor executor(kernels::trace_experts(engine.another_backend(), trace), engine.model().program,
                              {.context = cells,
                               .batch = engine.executor().batch_size(),
                               .cells = cells,
                               .types = engine.executor().types()});
    decode::SingleSequence sequence(executor);
    if (!trace->mixtures.empty() && !sequence.feed(tokens, &stop)) throw base::Interrupted{};
    return *trace;
}

PlacesUse simulate_places(const ExpertTrace &trace, int32_t places, size_t warm_up) {
    assert(warm_up < trace.tokens());
    const auto counted = static_cast<double>(trace.tokens() - warm_up);
    PlacesUse sum;
    for (const TracedMixture &mixture : trace.mixtures) {
        const auto held = static_cast<size_t>(std::clamp(places, mixture.used, mixture.experts));
        const auto fetched = static_cast<double>(fetched_by(mixture, held, warm_up)) / counted;
        sum.chosen += mixture.used;
        sum.fetched += fetched;
        sum.fetched_bytes += fetched * static_cast<double>(mixture.expert_bytes);
        sum.held_bytes += held * mixture.expert_bytes;
    }
    return sum;
}

}  // namespace runnel::measure
