#include "engine/decode/dry.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

namespace runnel::decode {

using text::TokenId;

namespace {

constexpr size_t kMostBytes = 40, kMostTail = 20;

// A view of tokens in reverse: the newest is number 0.
class Reversed {
  public:
    explicit Reversed(std::span<const TokenId> tokens) : tokens_(tokens) {}
    size_t size() const { return tokens_.size(); }
    TokenId operator[](size_t i) const { return tokens_[tokens_.size() - 1 - i]; }

  private:
    std::span<const TokenId> tokens_;
};

// If the token `i` places before the newest begins a breaker there, the length of its longest matching tail;
// otherwise nullopt.
std::optional<size_t> longest_tail(const DryBreakers &breakers, const Reversed &tokens, size_t i) {
    const auto found = breakers.find(tokens[i]);
    if (found == breakers.end()) return std::nullopt;
    std::optional<size_t> longest;
    for (const std::vector<TokenId> &tail : found->second) {
        bool matches = tail.size() <= i && (!longest || tail.size() > *longest);
        for (size_t k = 0; k < tail.size() && matches; ++k) matches = tail[k] == tokens[i - k - 1];
        if (matches) longest = tail.size();
    }
    return longest;
}

// The number of tokens after the newest breaker.
size_t behind_breaker(const DryBreakers &breakers, const Reversed &tokens) {
    for (size_t i = 0; i < tokens.size(); ++i)
        if (const auto tail = longest_tail(breakers, tokens, i)) return i - *tail;
    return tokens.size();
}

// z[k]: how many of the newest tokens recur k places earlier (Gusfield: "Algorithms on Strings, Trees, and
// Sequences", 1997, section 1.4).
std::vector<size_t> z_function(const Reversed &tokens) {
    std::vector<size_t> z(tokens.size(), 0);
    size_t from = 0, to = 0;  // the match that reaches furthest
    for (size_t k = 1; k < tokens.size(); ++k) {
        if (k < to) z[k] = std::min(to - k, z[k - from]);
        while (k + z[k] < tokens.size() && tokens[z[k]] == tokens[k + z[k]]) ++z[k];
        if (k + z[k] > to) from = k, to = k + z[k];
    }
    return z;
}

bool is_breaker(const DryBreakers *breakers, TokenId id) {
    if (!breakers) return false;
    const auto found = breakers->find(id);
    return found != breakers->end() &&
           std::ranges::any_of(found->second, [](const auto &tail) { return tail.empty(); });
}

void add_spelling(DryBreakers &breakers, TokenId head, std::vector<TokenId> tail) {
    std::vector<std::vector<TokenId>> &tails = breakers[head];
    if (std::ranges::find(tails, tail) == tails.end()) tails.push_back(std::move(tail));
}

}  // namespace

DryBreakers make_dry_breakers(const text::Tokenizer &tokenizer, std::span<const std::string> breakers) {
    DryBreakers made;
    for (TokenId id = 0; id < tokenizer.size(); ++id) {
        const std::string word = tokenizer.decode(id, true);
        for (const std::string &whole : breakers) {
            const std::string_view breaker = std::string_view(whole).substr(0, kMostBytes);
            if (breaker.empty()) continue;
            if (word.find(breaker) != std::string::npos) {
                add_spelling(made, id, {});
                continue;
            }
            for (size_t n = std::min(breaker.size() - 1, word.size()); n > 0; --n) {
                if (!word.ends_with(breaker.substr(0, n))) continue;
                std::vector<TokenId> tail =
                    tokenizer.encode(breaker.substr(n), {.add_special = false, .continues = true});
                tail.resize(std::min(tail.size(), kMostTail));
                add_spelling(made, id, std::move(tail));
            }
        }
    }
    return made;
}

std::unordered_map<TokenId, float> dry_penalties(const SamplingOptions &o, const DryBreakers *breakers,
                                                 std::span<const TokenId> history) {
    std::unordered_map<TokenId, float> penalties;
    if (o.dry_last_n >= 0)
        history = history.last(std::min(history.size(), static_cast<size_t>(o.dry_last_n)));
    const Reversed tokens(history);
    const auto allowed = static_cast<size_t>(std::max(0, o.dry_allowed_length));
    if (tokens.size() <= allowed) return penalties;
    const size_t most = breakers ? behind_breaker(*breakers, tokens) : tokens.size();
    if (most < allowed) return penalties;
    const std::vector<size_t> z = z_function(tokens);
    std::unordered_map<TokenId, size_t> longest;
    for (size_t k = 1; k < z.size(); ++k) {
        const size_t length = std::min(z[k], most);
        if (length < allowed) continue;
        size_t &known = longest[tokens[k - 1]];
        known = std::max(known, length);
    }
    constexpr float kLogOfLargest = 88.7228391f;
    const float most_exponent = o.dry_base > 1.000001f ? std::floor(kLogOfLargest / std::log(o.dry_base)) : 0;
    for (const auto &[id, length] : longest) {
        if (is_breaker(breakers, id)) continue;
        auto exponent = static_cast<float>(length - allowed);
        if (most_exponent > 0) exponent = std::min(exponent, most_exponent);
        penalties[id] = o.dry_multiplier * std::pow(o.dry_base, exponent);
    }
    return penalties;
}

}  // namespace runnel::decode
