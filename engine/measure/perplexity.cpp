#include "engine/measure/perplexity.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "engine/decode/error.h"

namespace runnel::measure {
namespace {

using decode::DecodeError, decode::StepInput;

constexpr size_t kLogitMemory = size_t{64} << 20;

struct Mean {
    double value, error;  // standard error
};

Mean mean(double sum, double sum_of_squares, int64_t count) {
    if (count == 0) return {0, 0};
    const double n = static_cast<double>(count), value = sum / n;
    const double variance = sum_of_squares / n - value * value;
    return {value, variance > 0 && count > 1 ? std::sqrt(variance / (n - 1)) : 0};
}

}  // namespace

void fail_not_finite() {
    throw DecodeError(DecodeError::Kind::Failed,
                      "the model computed numbers that are not finite (NaN or infinity): the file's weights "
                      "are damaged or overflow");
}

PerplexityRun::PerplexityRun(Executor &executor, std::span<const TokenId> tokens, int32_t context,
                             std::optional<TokenId> bos, LogitsWriter *save, LogitsReader *base)
    : PerplexityRun(
          executor, tokens, context, bos,
          save ? SaveRow([save](std::span<const float> logits) { save->write(logits); }) : SaveRow(),
          base ? BaseRow([base] { return base->read(); }) : BaseRow()) {}

PerplexityRun::PerplexityRun(Executor &executor, std::span<const TokenId> tokens, const Chunks &chunks,
                             std::optional<TokenId> bos, SaveRow save, BaseRow base)
    : executor_(&executor),
      tokens_(tokens),
      chunks_(chunks),
      bos_(bos),
      save_(std::move(save)),
      base_(std::move(base)),
      cache_(executor.new_sequence()) {
    assert(chunks.context >= 4 && chunks.context <= executor.context() && chunks.first_scored >= 0 &&
           chunks.scored() >= 1);
}

bool PerplexityRun::step(const StopRequest *stop) {
    const auto chunk = tokens_.subspan(static_cast<size_t>(done_) * static_cast<size_t>(chunks_.stride),
                                       static_cast<size_t>(chunks_.context));
    std::vector<TokenId> fed(chunk.begin(), chunk.end() - 1);  // nothing after the last token is scored
    if (bos_) fed[0] = *bos_;
    const size_t first = static_cast<size_t>(chunks_.first_scored),
                 vocab = static_cast<size_t>(executor_->vocab());
    const size_t batch = static_cast<size_t>(executor_->batch_size());
    const size_t most_rows = std::clamp<size_t>(kLogitMemory / (vocab * sizeof(float)), 1, batch);
    cache_.truncate(0);
    for (size_t at = 0; at < fed.size();) {
        const bool scored = at >= first;
        const size_t count = scored ? std::min(most_rows, fed.size() - at) : std::min(batch, first - at);
        const StepInput input{&cache_, std::span(fed).subspan(at, count),
                              scored ? static_cast<int32_t>(count) : 0};
        if ((stop && stop->requested()) ||
            !executor_->step({&input, 1}, logits_, stop ? stop->flag() : nullptr))
            return false;
        for (size_t i = 0; scored && i < count; ++i)
            score(std::span(logits_).subspan(i * vocab, vocab), chunk[at + i + 1]);
        at += count;
    }
    ++done_;
    return true;
}

void PerplexityRun::score(std::span<const float> logits, TokenId next) {
    const auto top = std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float l : logits) sum += std::exp(double{l} - double{*top});
    const double log_sum = double{*top} + std::log(sum);
    if (!std::isfinite(log_sum)) fail_not_finite();
    const double surprise = log_sum - double{logits[static_cast<size_t>(next)]};
    sum_ += surprise;
    sum_of_squares_ += surprise * surprise;
    ++count_;
    if (save_) save_(logits);
    if (!base_) return;

    const std::span<const float> base = base_();
    double divergence = 0;
    for (size_t id = 0; id < base.size(); ++id)
        if (base[id] > -16.0f)
            divergence += std::exp(double{base[id]}) * (double{base[id]} - double{logits[id]} + log_sum);
    divergence_ += divergence;
    divergence_squares_ += divergence * divergence;
    largest_divergence_ = count_ == 1 ? divergence : std::max(largest_divergence_, divergence);
    same_top_ += std::max_element(base.begin(), base.end()) - base.begin() == top - logits.begin();
}

Perplexity PerplexityRun::result() const {
    const Mean surprise = mean(sum_, sum_of_squares_, count_);
    Perplexity result;
    result.value = std::exp(surprise.value);
    result.error = result.value * surprise.error;
    result.tokens = count_;
    if (base_ && count_ > 0) {
        const Mean divergence = mean(divergence_, divergence_squares_, count_);
        result.divergence =
            Perplexity::Divergence{divergence.value, divergence.error, largest_divergence_,
                                   static_cast<double>(same_top_) / static_cast<double>(count_)};
    }
    return result;
}

}  // namespace runnel::measure
