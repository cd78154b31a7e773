#include "engine/decode/speculation/draft_writer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace runnel::decode {
namespace {

// The softmax of a whole row, or of a row known by its largest logits and its sum.
class Softmax {
  public:
    // Logits far below the largest are left out: an estimate does not need them.
    explicit Softmax(std::span<const float> logits)
        : logits_(logits), top_(*std::max_element(logits.begin(), logits.end())) {
        constexpr float kFar = 16;
        for (const float l : logits)
            if (l > top_ - kFar) sum_ += std::exp(l - top_);
    }
    explicit Softmax(const LogitRow &row)
        : largest_(row.largest()), top_(largest_.front().logit), sum_(row.sum()) {}

    double of_best() const { return double{1 / sum_}; }
    // The probability of a token whose logit is known.
    double of(TokenId id) const { return double{std::exp(logit(id) - top_) / sum_}; }

  private:
    float logit(TokenId id) const {
        if (!logits_.empty()) return logits_[static_cast<size_t>(id)];
        return std::ranges::find(largest_, id, &kernels::TopLogit::token)->logit;
    }

    std::span<const float> logits_;
    std::span<const kernels::TopLogit> largest_;
    float top_, sum_ = 0;
};

double largest(const Distribution &distribution) {
    double most = 0;
    for (const TokenProb &c : distribution.candidates) most = std::max(most, c.probability);
    return most;
}

}  // namespace

void DraftWriter::begin(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    draft_ = {};
    most_ = most;
    least_probability_ = least_probability;
    sampler_ = &sampler;
    history_.assign(text.begin(), text.end());
}

Draft DraftWriter::take() {
    return std::exchange(draft_, {});
}

bool DraftWriter::add(const LogitRow &row) {
    return add(&row, {});
}

bool DraftWriter::add(std::span<const float> row) {
    return add(nullptr, row);
}

bool DraftWriter::add(const LogitRow *row, std::span<const float> whole) {
    const bool going = add_token(row, whole) && draft_.tokens.size() < static_cast<size_t>(most_);
    // Drops branches without a drafted token that they are an alternative to.
    std::erase_if(draft_.branches, [&](const Branch &b) { return b.shared >= draft_.tokens.size(); });
    return going;
}

// The row, padded to the sampler's vocabulary. Tokens that a grammar refuses have no chance, so that the
// probabilities of drafts are those of a row that the device masked.
std::span<const float> DraftWriter::padded(std::span<const float> own) {
    constexpr float kHopeless = -1e30f;  // but finite
    const auto vocab = static_cast<size_t>(sampler_->vocab());
    std::vector<uint64_t> mask(sampler_->constraint() ? (vocab + 63) / 64 : 0);
    const bool is_masked = sampler_->mask(history_, mask);
    if (own.size() >= vocab && !is_masked) return own;
    padded_.assign(std::max(vocab, own.size()), kHopeless);
    for (size_t id = 0; id < own.size(); ++id)
        if (!is_masked || !std::isfinite(own[id]) || (id < vocab && (mask[id / 64] >> id % 64 & 1) != 0))
            padded_[id] = own[id];
    return padded_;
}

// False when the draft ends before this token.
bool DraftWriter::add_token(const LogitRow *row, std::span<const float> whole) {
    const Distribution *some = !row || row->largest().empty()
                                   ? nullptr
                                   : sampler_->distribution(row->largest(), history_, row->masked());
    std::span<const float> logits;
    if (!some) logits = padded(row ? row->whole_or_read(read_) : whole);
    const Distribution &distribution = some ? *some : sampler_->distribution(logits, history_);
    const TokenId id = sampler_->draw(history_.size());
    const bool greedy = !(sampler_->options().temperature > 0);
    std::optional<Softmax> all;
    if (greedy) all = some ? Softmax(*row) : Softmax(logits);
    double probability = 1;
    if (greedy)
        probability = all->of_best();
    else
        probability = with_distributions_ ? largest(distribution) : distribution.probability_of(id);
    if (static_cast<float>(probability) < least_probability_) return false;
    if (with_distributions_) {
        draft_.distributions.push_back(distribution);
    } else if (const TokenId other = sampler_->second(history_.size(), id); other != text::kNoToken) {
        const double alone = greedy ? all->of(other) : distribution.probability_of(other);
        const double if_wrong = std::min(1.0, alone / std::max(1 - probability, 1e-6));
        if (static_cast<float>(alone) >= least_probability_)
            draft_.branches.push_back({draft_.tokens.size(), {other}, {static_cast<float>(if_wrong)}});
    }
    draft_.tokens.push_back(id);
    draft_.probabilities.push_back(static_cast<float>(probability));
    history_.push_back(id);
    return true;
}

}  // namespace runnel::decode
