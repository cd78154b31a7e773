#include "engine/decode/speculation/pass_trial.h"

#include <algorithm>
#include <chrono>

#include "gguf/base/timer.h"

namespace runnel::decode {

PassTrial::PassTrial(const Sequence &sequence, int32_t candidates)
    : executor_(sequence.executor()),
      cache_(executor_.fork(sequence.cache())),
      depth_(cache_.length()),
      token_(cache_.tokens().empty() ? 0 : cache_.tokens().back()),
      candidates_(candidates) {}

std::optional<double> PassTrial::seconds_of(int32_t tokens, const StopRequest *stop) {
    if (tokens > executor_.batch_size() || depth_ + tokens > executor_.context()) return std::nullopt;
    const std::vector<TokenId> text(static_cast<size_t>(tokens), token_);
    const auto start = base::Clock::now();
    if (!executor_.add({.cache = &cache_, .tokens = text, .logit_rows = tokens, .candidates = candidates_}))
        return std::nullopt;
    if (!executor_.run(output_, stop ? stop->flag() : nullptr)) return std::nullopt;
    const double took = base::seconds_since(start);
    depth_ = cache_.truncatable(depth_);
    cache_.truncate(depth_);
    return std::max(took, 1e-9);
}

}  // namespace runnel::decode
