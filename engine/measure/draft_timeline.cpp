#include "engine/measure/draft_timeline.h"

#include <algorithm>

#include "engine/measure/median.h"

namespace runnel::measure {

DraftTimeline draft_timeline(const completion::Done &done) {
    DraftTimeline result;
    size_t left = done.tokens.empty() ? 0 : done.tokens.size() - 1;
    std::vector<double> plain;
    for (const decode::DraftPass &pass : done.draft_passes) {
        decode::DraftPass &shown = result.passes.emplace_back(pass);
        shown.tokens.resize(std::min(left, pass.tokens.size()));
        shown.accepted = std::min(pass.accepted, shown.tokens.size());
        left -= shown.tokens.size();
        result.tokens += static_cast<int64_t>(shown.tokens.size());
        result.guessed += pass.guessed;
        result.accepted += static_cast<int64_t>(shown.accepted);
        result.seconds += pass.draft_seconds + pass.pass_seconds;
        if (pass.guessed == 0) plain.push_back(pass.pass_seconds);
    }
    result.plain_passes = static_cast<int64_t>(plain.size());
    if (!plain.empty()) {
        result.plain = median(std::move(plain));
        result.without = *result.plain * static_cast<double>(result.tokens);
    }
    return result;
}

}  // namespace runnel::measure
