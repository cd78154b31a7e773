#include "engine/decode/sampler.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <limits>
#include <string>

#include "engine/decode/error.h"
#include "engine/decode/random.h"

namespace runnel::decode {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

[[noreturn]] void not_finite() {
    throw DecodeError(DecodeError::Kind::Failed,
                      "the model computed numbers that are not finite (NaN or infinity): the file's "
                      "weights are damaged or overflow");
}

bool by_logit(const Candidate &a, const Candidate &b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Reorders `set` so that its elements come in the order of `less` for as far as `more` asks: more(candidate)
// is called for each in turn and says whether to go on. Returns how many it saw. Sorts only about as many
// elements as that.
template <class Less, class More>
size_t walk_in_order(std::vector<Candidate> &set, Less less, More more) {
    size_t sorted = 0;
    while (sorted < set.size()) {
        const size_t next = std::min(set.size(), std::max<size_t>(64, sorted * 4));
        const auto from = set.begin() + static_cast<std::ptrdiff_t>(sorted);
        const auto to = set.begin() + static_cast<std::ptrdiff_t>(next);
        if (next < set.size()) std::nth_element(from, to, set.end(), less);
        std::sort(from, to, less);
        for (; sorted < next; ++sorted)
            if (!more(set[sorted])) return sorted + 1;
    }
    return sorted;
}

}  // namespace

double Distribution::probability_of(TokenId id) const {
    for (const Candidate &c : candidates)
        if (c.id == id) return c.probability;
    return 0;
}

TokenId Distribution::pick(double uniform) const {
    assert(!candidates.empty());
    double sum = 0;
    for (const Candidate &c : candidates) {
        sum += c.probability;
        if (uniform < sum) return c.id;
    }
    // Rounding left the sum a little below 1: the last token that can come at all.
    for (size_t i = candidates.size(); i-- > 0;)
        if (candidates[i].probability > 0) return candidates[i].id;
    return candidates.back().id;
}

Sampler::Sampler(SamplingOptions options, int32_t vocab) : options_(std::move(options)), vocab_(vocab) {
    for (const auto &[id, bias] : options_.logit_bias) {
        biases_[id].push_back(bias);
        if (id < 0 || id >= vocab_)
            throw DecodeError(DecodeError::Kind::BadInput, "logit bias: there is no token " +
                                                               std::to_string(id) + " (the vocabulary has " +
                                                               std::to_string(vocab_) + ")");
    }
}

void Sampler::load(std::span<const float> logits, std::span<const TokenId> history) {
    assert(logits.size() >= static_cast<size_t>(vocab_));
    logits_.assign(logits.begin(), logits.begin() + vocab_);
    bool finite = true;
    for (const float l : logits_) finite &= std::abs(l) <= FLT_MAX;
    if (!finite) not_finite();
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

bool Sampler::penalizes() const {
    const SamplingOptions &o = options_;
    return o.repeat_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0;
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
    for (const auto &[id, count] : counts_) {
        float &l = logits_[static_cast<size_t>(id)];
        l = penalized(l, count);
    }
}

// The k largest in one pass: whoever is not above the k-th largest so far is out. Among equals the lower id
// wins, which is the one that came first.
void Sampler::keep_top_k() {
    std::vector<Candidate> &set = result_.candidates;
    set.clear();
    const bool all = options_.top_k <= 0 || options_.top_k >= vocab_;
    const size_t k = static_cast<size_t>(all ? vocab_ : options_.top_k);
    float threshold = kForbidden;
    const auto shrink = [&] {
        std::nth_element(set.begin(), set.begin() + static_cast<std::ptrdiff_t>(k - 1), set.end(), by_logit);
        set.resize(k);
        threshold = set[k - 1].logit;
    };
    for (int32_t id = 0; id < vocab_; ++id) {
        const float l = logits_[static_cast<size_t>(id)];
        if (!(l > threshold)) continue;
        set.push_back({id, l, 0});
        if (!all && set.size() >= 2 * k + 64) shrink();
    }
    if (!all && set.size() > k) shrink();
    sorted_ = !all;
    if (sorted_) std::sort(set.begin(), set.end(), by_logit);
}

double Sampler::softmax(float temperature) {
    std::vector<Candidate> &set = result_.candidates;
    float top = set.front().logit;
    for (const Candidate &c : set) top = std::max(top, c.logit);
    double sum = 0;
    for (Candidate &c : set) {
        c.probability = std::exp((double{c.logit} - double{top}) / double{temperature});
        sum += c.probability;
    }
    for (Candidate &c : set) c.probability /= sum;
    return double{top} / double{temperature} + std::log(sum);
}

void Sampler::keep_typical() {
    if (options_.typical >= 1) return;
    std::vector<Candidate> &set = result_.candidates;
    const double log_sum = softmax(1);
    const auto surprise = [&](const Candidate &c) { return log_sum - double{c.logit}; };
    double entropy = 0;
    for (const Candidate &c : set) entropy += c.probability * surprise(c);
    const auto distance = [&](const Candidate &c) { return std::abs(surprise(c) - entropy); };
    const auto by_distance = [&](const Candidate &a, const Candidate &b) {
        const double da = distance(a), db = distance(b);
        return da != db ? da < db : a.id < b.id;
    };
    double sum = 0;
    set.resize(walk_in_order(set, by_distance, [&](const Candidate &c) {
        sum += c.probability;
        return !(sum > double{options_.typical});
    }));
    std::sort(set.begin(), set.end(), by_logit);
    sorted_ = true;
}

void Sampler::keep_top_p() {
    if (options_.top_p >= 1) return;
    std::vector<Candidate> &set = result_.candidates;
    softmax(1);
    double sum = 0;
    const auto more = [&](const Candidate &c) {
        sum += c.probability;
        return sum < double{options_.top_p};
    };
    if (!sorted_) {
        set.resize(walk_in_order(set, by_logit, more));
    } else {
        size_t kept = 0;
        while (kept < set.size() && more(set[kept])) ++kept;
        set.resize(std::min(set.size(), kept + 1));
    }
    sorted_ = true;
}

void Sampler::keep_min_p() {
    if (options_.min_p <= 0) return;
    std::vector<Candidate> &set = result_.candidates;
    float top = kForbidden;
    for (const Candidate &c : set) top = std::max(top, c.logit);
    const double least = double{top} + std::min(0.0, std::log(double{options_.min_p}));
    std::erase_if(set, [&](const Candidate &c) { return double{c.logit} < least; });
    if (!sorted_) std::sort(set.begin(), set.end(), by_logit);
    sorted_ = true;
}

void Sampler::keep_argmax() {
    const auto largest = std::max_element(logits_.begin(), logits_.end());  // the first among equals
    result_.candidates.clear();
    if (*largest == kForbidden) return;
    result_.candidates.push_back({static_cast<TokenId>(largest - logits_.begin()), *largest, 1});
}

void Sampler::filter(std::span<const float> logits, std::span<const TokenId> history) {
    whole_ = true;
    load(logits, history);
    penalize(history);
    const bool greedy = !(options_.temperature > 0);
    greedy ? keep_argmax() : keep_top_k();
    if (result_.candidates.empty())
        throw DecodeError(DecodeError::Kind::Failed,
                          constraint_ ? "every token that the grammar allows is forbidden by the logit biases"
                                      : "every token is forbidden by the logit biases");
    if (!greedy) keep_after_top_k();
}

void Sampler::keep_after_top_k() {
    keep_typical();
    keep_top_p();
    keep_min_p();
}

const Distribution &Sampler::distribution(std::span<const float> logits, std::span<const TokenId> history) {
    filter(logits, history);
    if (options_.temperature > 0) softmax(options_.temperature);
    return result_;
}

// log p_i is l_i / temperature and a constant: no probability is needed.
TokenId Sampler::largest(size_t history, TokenId excluded) const {
    GumbelNoise noise(options_.seed, stream_, position(history));
    TokenId best = text::kNoToken;
    double most = 0;
    for (const Candidate &c : result_.candidates) {
        if (c.id == excluded) continue;
        const double log_p = double{c.logit} / double{options_.temperature};
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
    const std::vector<Candidate> &set = result_.candidates;
    assert(!set.empty());
    return set.size() == 1 ? set.front().id : largest(history, text::kNoToken);
}

TokenId Sampler::second(size_t history, TokenId first) const {
    if (options_.temperature > 0) return largest(history, first);
    if (!whole_) return greedy_second_;
    TokenId best = text::kNoToken;
    float most = kForbidden;
    for (TokenId id = 0; id < vocab_; ++id) {
        const float l = logits_[static_cast<size_t>(id)];
        if (!(l > most) || id == first) continue;
        best = id;
        most = l;
    }
    return best;
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> history) {
    filter(logits, history);
    return draw(history.size());
}

// No logit becomes larger than the model made it.
bool Sampler::only_lowers() const {
    const SamplingOptions &o = options_;
    const bool penalties = o.repeat_penalty >= 1 && o.presence_penalty >= 0 && o.frequency_penalty >= 0;
    return penalties && std::all_of(o.logit_bias.begin(), o.logit_bias.end(),
                                    [](const auto &bias) { return bias.second <= 0; });
}

int32_t Sampler::candidates_needed(int32_t most) const {
    constexpr int32_t kLowered = 64, kForbiddenOnes = 8;  // of the largest, as a rule
    const SamplingOptions &o = options_;
    if (!only_lowers()) return 0;
    const bool lowers = penalizes() || std::any_of(o.logit_bias.begin(), o.logit_bias.end(),
                                                   [](const auto &b) { return b.second != kForbidden; });
    int32_t needed = 1;
    if (o.temperature > 0) {
        const bool by_count = o.top_k > 0 && o.top_k < vocab_;
        if (!by_count && !(o.min_p > 0 && o.top_p >= 1 && o.typical >= 1)) return 0;
        needed = by_count ? o.top_k : most;
        if (needed > most) return 0;
        if (by_count && !o.logit_bias.empty()) needed += kForbiddenOnes;
    }
    if (lowers && needed < most) needed += kLowered;  // (`most` is anything up to INT32_MAX)
    return std::min({needed, most, vocab_});
}

// Into result_: the candidates that the filters after top-k begin with. False when tokens outside `largest`
// might be among them. A penalized candidate that still ranks before the last of `largest`, unpenalized, is
// certainly in the top-k: no token outside `largest` ranks before that one.
bool Sampler::choose(std::span<const kernels::Candidate> largest, std::span<const TokenId> history) {
    std::vector<Candidate> &set = result_.candidates;
    set.clear();
    const bool all = largest.size() >= static_cast<size_t>(vocab_);
    const Candidate last{largest.back().token, largest.back().logit, 0};
    for (const kernels::Candidate &c : largest) {
        if (c.token >= vocab_ || (constraint_ && !constraint_->allows(history, c.token))) continue;
        float l = c.logit;
        if (const auto found = biases_.find(c.token); found != biases_.end())
            for (const float bias : found->second) l = std::min(l + bias, FLT_MAX);
        if (const auto found = counts_.find(c.token); found != counts_.end()) l = penalized(l, found->second);
        const Candidate candidate{c.token, l, 0};
        if (l != kForbidden && (all || !by_logit(last, candidate))) set.push_back(candidate);
    }
    std::sort(set.begin(), set.end(), by_logit);
    sorted_ = true;
    if (set.empty()) return false;
    const bool greedy = !(options_.temperature > 0), by_count = options_.top_k > 0 && options_.top_k < vocab_;
    if (!greedy && !by_count)  // min-p decides
        return all || double{last.logit} <
                          double{set.front().logit} + std::min(0.0, std::log(double{options_.min_p}));
    const size_t wanted = greedy ? 1 : static_cast<size_t>(options_.top_k);
    if (set.size() < wanted) return all;
    greedy_second_ = greedy && set.size() > 1 ? set[1].id : text::kNoToken;
    set.resize(wanted);
    return true;
}

bool Sampler::filter(std::span<const kernels::Candidate> largest, std::span<const TokenId> history) {
    assert(!largest.empty());
    whole_ = false;
    if (!(std::abs(largest.front().logit) <= FLT_MAX)) not_finite();
    if (candidates_needed(std::numeric_limits<int32_t>::max()) == 0) return false;
    count(history);
    if (!choose(largest, history)) return false;
    if (options_.temperature > 0) keep_after_top_k();
    return true;
}

const Distribution *Sampler::distribution(std::span<const kernels::Candidate> largest,
                                          std::span<const TokenId> history) {
    if (!filter(largest, history)) return nullptr;
    softmax(options_.temperature > 0 ? options_.temperature : 1);
    return &result_;
}

std::optional<TokenId> Sampler::sample(std::span<const kernels::Candidate> largest,
                                       std::span<const TokenId> history) {
    if (!filter(largest, history)) return std::nullopt;
    return draw(history.size());
}

}  // namespace runnel::decode
