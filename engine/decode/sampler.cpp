#include "engine/decode/sampler.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <limits>
#include <string>

#include "engine/decode/error.h"
#include "engine/decode/logit_rows.h"
#include "engine/decode/logit_scan.h"
#include "engine/decode/random.h"

namespace runnel::decode {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

Sampler::Sampler(SamplingOptions options, int32_t vocab) : options_(std::move(options)), vocab_(vocab) {
    for (const auto &[id, bias] : options_.logit_bias) {
        biases_[id].push_back(bias);
        if (id < 0 || id >= vocab_)
            throw DecodeError(DecodeError::Kind::BadInput, "logit bias: there is no token " +
                                                               std::to_string(id) + " (the vocabulary has " +
                                                               std::to_string(vocab_) + ")");
    }
    choose_steps();
}

void Sampler::choose_steps() {
    const SamplingOptions &o = options_;
    const bool has_temperature = std::ranges::find(o.samplers, SamplerKind::Temperature) != o.samplers.end();
    greedy_ = has_temperature && !(o.temperature > 0) && !(o.dynatemp_range > 0);
    const bool filters = !greedy_ && o.mirostat == 0;
    const auto is_on = [&](SamplerKind kind) {
        switch (kind) {
            case SamplerKind::Penalties:
                return o.repeat_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0;
            case SamplerKind::Dry:
                return o.dry_multiplier != 0 && o.dry_base >= 1 && o.dry_last_n != 0;
            case SamplerKind::TopNSigma:
                return filters && o.top_n_sigma > 0;
            case SamplerKind::TopK:
                return filters && o.top_k > 0 && o.top_k < vocab_;
            case SamplerKind::Typical:
                return filters && o.typical < 1;
            case SamplerKind::TopP:
                return filters && o.top_p < 1;
            case SamplerKind::MinP:
                return filters && o.min_p > 0;
            case SamplerKind::Xtc:
                return filters && o.xtc_probability > 0 && o.xtc_threshold <= 0.5f;
            case SamplerKind::Temperature:
                return !greedy_;
        }
        return false;
    };
    for (const SamplerKind kind : o.samplers)
        if (is_on(kind)) steps_.push_back(kind);
    const size_t first = !steps_.empty() && steps_[0] == SamplerKind::Penalties ? 1 : 0;
    by_count_ = steps_.size() > first && steps_[first] == SamplerKind::TopK;
}

void Sampler::load(std::span<const float> logits, std::span<const TokenId> history) {
    assert(logits.size() >= static_cast<size_t>(vocab_));
    logits_.assign(logits.begin(), logits.begin() + vocab_);
    if (constraint_) {
        const grammar::Bits &mask = constraint_->mask(history);
        for (TokenId id = 0; id < vocab_; ++id)
            if (!grammar::has_bit(mask, id)) logits_[static_cast<size_t>(id)] = kForbidden;
    }
    for (const auto &[id, bias] : options_.logit_bias) {
        float &l = logits_[static_cast<size_t>(id)];
        l = std::min(l + bias, FLT_MAX);
    }
}

bool Sampler::mask(std::span<const TokenId> history, std::span<uint64_t> bits) {
    if (!constraint_) return false;
    try {
        const grammar::Bits *mask = constraint_->grammar_mask(history);
        if (!mask) return false;
        const size_t words = std::min(mask->size(), bits.size());
        std::copy_n(mask->begin(), words, bits.begin());
        std::ranges::fill(bits.subspan(words), 0);
    } catch (const DecodeError &) {
        return false;
    }
    const auto end = static_cast<size_t>(vocab_);
    for (size_t word = end / 64; word < bits.size(); ++word)
        bits[word] &= word > end / 64 ? 0 : (uint64_t{1} << end % 64) - 1;
    return std::ranges::any_of(bits, [](uint64_t word) { return word != 0; });
}

bool Sampler::penalizes() const {
    return std::ranges::find(steps_, SamplerKind::Penalties) != steps_.end();
}

void Sampler::count(std::span<const TokenId> history) {
    counts_.clear();
    if (!penalizes()) return;
    if (options_.repeat_last_n >= 0)
        history = history.last(std::min(history.size(), static_cast<size_t>(options_.repeat_last_n)));
    for (const TokenId id : history)
        if (id >= 0 && id < vocab_) ++counts_[id];
}

float Sampler::penalized(float l, int32_t count) const {
    const SamplingOptions &o = options_;
    if (l == kForbidden) return l;
    l = l > 0 ? l / o.repeat_penalty : l * o.repeat_penalty;
    return std::min(l - (static_cast<float>(count) * o.frequency_penalty + o.presence_penalty), FLT_MAX);
}

void Sampler::penalize(std::span<const TokenId> history) {
    count(history);
    if (!gathered_) {
        for (const auto &[id, count] : counts_) {
            float &l = logits_[static_cast<size_t>(id)];
            l = penalized(l, count);
        }
        return;
    }
    set_.apply_temperature();
    for (TokenProb &c : set_.all())
        if (const auto found = counts_.find(c.id); found != counts_.end())
            c.logit = penalized(c.logit, found->second);
    set_.sorted = false;
}

void Sampler::penalize_repetition(std::span<const TokenId> history) {
    const auto penalties = dry_penalties(options_, breakers_.get(), history);
    if (penalties.empty()) return;
    const auto lowered = [&](float l, float penalty) { return std::max(l - penalty, -FLT_MAX); };
    if (!gathered_) {
        for (const auto &[id, penalty] : penalties) {
            if (id < 0 || id >= vocab_) continue;
            float &l = logits_[static_cast<size_t>(id)];
            if (l != kForbidden) l = lowered(l, penalty);
        }
        return;
    }
    set_.apply_temperature();
    for (TokenProb &c : set_.all())
        if (const auto found = penalties.find(c.id); found != penalties.end())
            c.logit = lowered(c.logit, found->second);
    set_.sorted = false;
}

// The k largest in one pass: only logits above the k-th largest so far are added. Among equals the lower id
// wins, because it is visited first.
void Sampler::gather(int32_t wanted) {
    std::vector<TokenProb> &set = set_.all();
    const bool all = wanted >= vocab_;
    const auto k = static_cast<size_t>(wanted);
    float threshold = kForbidden;
    const auto shrink = [&] {
        std::nth_element(set.begin(), set.begin() + static_cast<std::ptrdiff_t>(k - 1), set.end(), by_logit);
        set.resize(k);
        threshold = set[k - 1].logit;
    };
    for_each_above(logits_, threshold, [&](size_t id) {
        set.push_back({static_cast<TokenId>(id), logits_[id], 0});
        if (!all && set.size() >= 2 * k + 64) shrink();
    });
    if (!all && set.size() > k) shrink();
    if (!all) set_.sort();
    gathered_ = true;
    if (set.empty())
        throw DecodeError(DecodeError::Kind::Failed,
                          constraint_
                              ? "every token that the grammar allows is banned, or forbidden by the logit "
                                "biases"
                              : "every token is forbidden by the logit biases");
}

void Sampler::keep_argmax() {
    float most = kForbidden;
    size_t largest = 0;  // the first among equals
    for_each_above(logits_, most, [&](size_t id) { most = logits_[id], largest = id; });
    if (most == kForbidden) return gather(1);  // which throws
    set_.all().push_back({static_cast<TokenId>(largest), most, 1});
    gathered_ = true;
}

void Sampler::apply(SamplerKind step, std::span<const TokenId> history) {
    const SamplingOptions &o = options_;
    if (step == SamplerKind::Penalties) return penalize(history);
    if (step == SamplerKind::Dry) return penalize_repetition(history);
    if (step == SamplerKind::TopK && !gathered_) return gather(o.top_k);
    if (!gathered_) gather(vocab_);
    switch (step) {
        case SamplerKind::Penalties:
        case SamplerKind::Dry:
            break;
        case SamplerKind::TopNSigma:
            return set_.keep_top_n_sigma(o.top_n_sigma);
        case SamplerKind::TopK:
            return set_.keep_top_k(o.top_k);
        case SamplerKind::Typical:
            return set_.keep_typical(o.typical);
        case SamplerKind::TopP:
            return set_.keep_top_p(o.top_p);
        case SamplerKind::MinP:
            return set_.keep_min_p(o.min_p);
        case SamplerKind::Xtc: {
            const double coin = uniform(o.seed, stream_, position(history.size()), Draw::Exclusion);
            if (coin < double{o.xtc_probability}) set_.exclude_top(o.xtc_threshold);
            return;
        }
        case SamplerKind::Temperature:
            return scale();
    }
}

void Sampler::scale() {
    const double t = double{options_.temperature}, range = double{options_.dynatemp_range};
    if (range > 0)
        set_.scale_by_entropy(std::max(0.0, t - range), t + range, options_.dynatemp_exponent);
    else
        set_.temperature *= t;
}

// Applies the steps from number `first_step` on, then Mirostat or adaptive-p.
void Sampler::apply_all(size_t first_step, std::span<const TokenId> history) {
    for (size_t i = first_step; i < steps_.size(); ++i) apply(steps_[i], history);
    if (greedy_) {
        if (!gathered_) keep_argmax();
        return;
    }
    if (!gathered_) gather(vocab_);
    const Carried before = depends_on_draws() ? carried(history.size()) : Carried();
    if (options_.mirostat == 1) return set_.keep_mirostat_top_k(before.mu, vocab_);
    if (options_.mirostat == 2) return set_.keep_surprise_up_to(before.mu);
    if (options_.adaptive_target < 0) return;
    const double wanted = 2 * double{options_.adaptive_target} - before.sum / before.weight;
    probabilities_ = set_.prefer_probability(std::clamp(wanted, 0.0, 1.0));
}

// Leaves no candidate, or only the forced token.
bool Sampler::take_forced(std::span<const TokenId> history) {
    set_.clear();
    const auto token = forced_ ? forced_(history, dropped_) : std::nullopt;
    is_forced_ = token.has_value();
    if (token) set_.all().push_back({*token, 0, 1});
    return is_forced_;
}

void Sampler::filter(std::span<const float> logits, std::span<const TokenId> history) {
    whole_ = true;
    expect_finite(logits.first(static_cast<size_t>(vocab_)));
    if (take_forced(history)) return;
    gathered_ = false;
    load(logits, history);
    apply_all(0, history);
}

const Distribution &Sampler::distribution(std::span<const float> logits, std::span<const TokenId> history) {
    filter(logits, history);
    if (!greedy_) set_.softmax();
    return set_.distribution;
}

// log p_i is l_i / temperature plus a constant, so probabilities are not needed.
TokenId Sampler::largest(size_t history, TokenId excluded) const {
    GumbelNoise noise(options_.seed, stream_, position(history));
    TokenId best = text::kNoToken;
    double most = 0;
    for (const TokenProb &c : set_.all()) {
        if (c.id == excluded) continue;
        const double log_p = double{c.logit} / set_.temperature;
        const auto id = static_cast<uint32_t>(c.id);
        if (best >= 0 && log_p + noise.bound(id) < most) continue;
        const double value = log_p + noise.value(id);
        if (best >= 0 && (value < most || (value == most && c.id > best))) continue;
        best = c.id;
        most = value;
    }
    return best;
}

TokenId Sampler::draw(size_t history) const {
    const std::vector<TokenProb> &set = set_.all();
    assert(!set.empty());
    return set.size() == 1 ? set.front().id : largest(history, text::kNoToken);
}

TokenId Sampler::second(size_t history, TokenId first) const {
    if (is_forced_) return text::kNoToken;
    if (!greedy_) return largest(history, first);
    if (!whole_) return greedy_second_;
    TokenId best = text::kNoToken;
    float most = kForbidden;
    for_each_above(logits_, most, [&](size_t i) {
        const auto id = static_cast<TokenId>(i);
        if (id != first) best = id, most = logits_[i];
    });
    return best;
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> history) {
    filter(logits, history);
    return draw_and_carry(history.size());
}

// The newest known state up to this position: later positions of a draft have none of their own yet.
Sampler::Carried Sampler::carried(size_t history) const {
    const auto after = carried_.upper_bound(position(history));
    if (after != carried_.begin()) return std::prev(after)->second;
    const double target = double{options_.adaptive_target}, left = 1 - double{options_.adaptive_decay};
    return {2 * double{options_.mirostat_tau}, target / left, 1 / left};
}

TokenId Sampler::draw_and_carry(size_t history) {
    constexpr size_t kMostKept = 64;  // more than a pass verifies
    const TokenId id = draw(history);
    if (!depends_on_draws() || greedy_ || is_forced_) return id;
    Carried next = carried(history);
    if (options_.mirostat > 0) {
        set_.softmax();
        const double surprise = -std::log2(set_.distribution.probability_of(id));
        next.mu -= double{options_.mirostat_eta} * (surprise - double{options_.mirostat_tau});
    } else {
        const auto at = std::ranges::find(set_.all(), id, &TokenProb::id) - set_.all().begin();
        const double decay = double{options_.adaptive_decay};
        next.sum = probabilities_[static_cast<size_t>(at)] + decay * next.sum;
        next.weight = 1 + decay * next.weight;
    }
    carried_[position(history) + 1] = next;
    if (carried_.size() > kMostKept) carried_.erase(carried_.begin());
    return id;
}

// True if no option raises a logit.
bool Sampler::only_lowers() const {
    const SamplingOptions &o = options_;
    const bool penalties = o.repeat_penalty >= 1 && o.presence_penalty >= 0 && o.frequency_penalty >= 0;
    return penalties && std::all_of(o.logit_bias.begin(), o.logit_bias.end(),
                                    [](const auto &bias) { return bias.second <= 0; });
}

int32_t Sampler::candidates_needed(int32_t most) const {
    // Usually no more than this many of the largest logits are lowered, or forbidden.
    constexpr int32_t kLowered = 64, kForbiddenOnes = 8;
    const SamplingOptions &o = options_;
    if (!only_lowers()) return 0;
    const size_t first = !steps_.empty() && steps_[0] == SamplerKind::Penalties ? 1 : 0;
    const bool by_share = steps_.size() > first && steps_[first] == SamplerKind::MinP;
    if (greedy_ ? steps_.size() > first : !by_count_ && !by_share) return 0;
    if (penalizes() && first == 0) return 0;
    if (std::ranges::find(steps_, SamplerKind::Dry) != steps_.end()) return 0;
    const bool lowers = penalizes() || std::any_of(o.logit_bias.begin(), o.logit_bias.end(),
                                                   [](const auto &b) { return b.second != kForbidden; });
    int32_t needed = 1;
    if (!greedy_) {
        needed = by_count_ ? o.top_k : most;
        if (needed > most) return 0;
        if (by_count_ && !o.logit_bias.empty()) needed += kForbiddenOnes;
    }
    if (lowers && needed < most) needed += kLowered;  // no overflow, even if `most` is INT32_MAX
    return std::min({needed, most, vocab_});
}

// Fills set_ with the candidates for the filters after top-k. Returns false when tokens outside `largest`
// might belong to them. A penalized candidate that still ranks before the last of `largest`, unpenalized, is
// certainly in the top-k: no token outside `largest` ranks before that last one.
bool Sampler::choose(std::span<const kernels::TopLogit> largest, std::span<const TokenId> history,
                     bool masked) {
    std::vector<TokenProb> &set = set_.all();
    const bool all =
        largest.size() >= static_cast<size_t>(vocab_) || (masked && largest.back().logit == kForbidden);
    const TokenProb last{largest.back().token, largest.back().logit, 0};
    for (const kernels::TopLogit &c : largest) {
        if (masked && c.logit == kForbidden) break;
        if (c.token >= vocab_ || (!masked && constraint_ && !constraint_->allows(history, c.token))) continue;
        float l = c.logit;
        if (const auto found = biases_.find(c.token); found != biases_.end())
            for (const float bias : found->second) l = std::min(l + bias, FLT_MAX);
        if (const auto found = counts_.find(c.token); found != counts_.end()) l = penalized(l, found->second);
        const TokenProb candidate{c.token, l, 0};
        if (l != kForbidden && (all || !by_logit(last, candidate))) set.push_back(candidate);
    }
    std::sort(set.begin(), set.end(), by_logit);
    set_.sorted = true;
    if (set.empty()) return false;
    if (!greedy_ && !by_count_)  // min-p is the first filter
        return all || double{last.logit} <
                          double{set.front().logit} + std::min(0.0, std::log(double{options_.min_p}));
    const size_t wanted = greedy_ ? 1 : static_cast<size_t>(options_.top_k);
    if (set.size() < wanted) return all;
    greedy_second_ = greedy_ && set.size() > 1 ? set[1].id : text::kNoToken;
    set.resize(wanted);
    return true;
}

bool Sampler::filter(std::span<const kernels::TopLogit> largest, std::span<const TokenId> history,
                     bool masked) {
    assert(!largest.empty());
    whole_ = false;
    expect_finite({&largest.front().logit, 1});
    if (candidates_needed(std::numeric_limits<int32_t>::max()) == 0) return false;
    if (take_forced(history)) return true;
    gathered_ = true;
    count(history);
    if (!choose(largest, history, masked)) return false;
    const bool penalized = !steps_.empty() && steps_[0] == SamplerKind::Penalties;
    apply_all((penalized ? 1 : 0) + (by_count_ ? 1 : 0), history);
    return true;
}

const Distribution *Sampler::distribution(std::span<const kernels::TopLogit> largest,
                                          std::span<const TokenId> history, bool masked) {
    if (!filter(largest, history, masked)) return nullptr;
    set_.softmax();
    return &set_.distribution;
}

std::optional<TokenId> Sampler::sample(std::span<const kernels::TopLogit> largest,
                                       std::span<const TokenId> history, bool masked) {
    if (!filter(largest, history, masked)) return std::nullopt;
    return draw_and_carry(history.size());
}

}  // namespace runnel::decode
