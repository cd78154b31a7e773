#include "engine/decode/speculation/model_draft.h"

#include <algorithm>
#include <cmath>

#include "engine/decode/error.h"

namespace runnel::decode {
namespace {

// Of the largest logit in softmax(logits). What is far below adds nothing that a guess of confidence needs.
float probability_of_best(std::span<const float> logits) {
    constexpr float kFar = 16;
    const float top = *std::max_element(logits.begin(), logits.end());
    float sum = 0;
    for (const float l : logits)
        if (l > top - kFar) sum += std::exp(l - top);
    return 1 / sum;
}

double largest(const Distribution &distribution) {
    double most = 0;
    for (const Candidate &c : distribution.candidates) most = std::max(most, c.probability);
    return most;
}

}  // namespace

// False when there is no room for a draft.
bool ModelDraft::read(std::span<const TokenId> text, int32_t most) {
    const auto context = static_cast<size_t>(session_.executor().context());
    const size_t wanted = static_cast<size_t>(most);
    if (context < 2 * wanted + 2) return false;
    if (skipped_ >= text.size() || text.size() + wanted <= context) skipped_ = 0;
    if (text.size() - skipped_ + wanted > context) skipped_ = text.size() - context / 2;
    readable_.assign(text.begin() + static_cast<std::ptrdiff_t>(skipped_), text.end());
    for (TokenId &id : readable_)
        if (id < 0 || id >= session_.executor().vocab()) id = 0;
    const size_t known = session_.reuse(readable_);
    return session_.feed(std::span(readable_).subspan(known));
}

std::span<const float> ModelDraft::logits(const Sampler &sampler) {
    constexpr float kHopeless = -1e30f;  // but finite
    const std::span<const float> own = session_.logits();
    if (own.size() >= static_cast<size_t>(sampler.vocab())) return own;
    padded_.assign(static_cast<size_t>(sampler.vocab()), kHopeless);
    std::copy(own.begin(), own.end(), padded_.begin());
    return padded_;
}

// False when the draft ends in front of this token.
bool ModelDraft::add_token(Draft &draft, float least_probability, Sampler &sampler) {
    const std::span<const float> row = logits(sampler);
    const Distribution &distribution = sampler.distribution(row, history_);
    const TokenId id = sampler.draw(history_.size());
    const bool greedy = !(sampler.options().temperature > 0);
    double probability = 1;
    if (greedy)
        probability = double{probability_of_best(row)};
    else
        probability = with_distributions_ ? largest(distribution) : distribution.probability_of(id);
    if (static_cast<float>(probability) < least_probability) return false;
    if (with_distributions_) draft.distributions.push_back(distribution);
    draft.tokens.push_back(id);
    draft.probabilities.push_back(static_cast<float>(probability));
    history_.push_back(id);
    return true;
}

Draft ModelDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    Draft draft;
    if (most <= 0 || text.empty()) return draft;
    try {
        if (!read(text, most)) return draft;
        history_.assign(text.begin(), text.end());
        while (add_token(draft, least_probability, sampler)) {
            const TokenId next = draft.tokens.back();
            const bool full = draft.tokens.size() == static_cast<size_t>(most);
            if (full || next >= session_.executor().vocab() || !session_.feed({&next, 1})) break;
        }
    } catch (const DecodeError &error) {
        if (error.kind != DecodeError::Kind::OutOfMemory) throw;
        session_.truncate(0);  // what it holds, others may need
    }
    return draft;
}

}  // namespace runnel::decode
