#include "engine/decode/speculation/grammar_draft.h"

#include <algorithm>

namespace runnel::decode {

Draft GrammarDraft::draft(std::span<const TokenId> text, int32_t most, float, Sampler &sampler) {
    constexpr size_t kBytesOfToken = 16, kTokensBefore = 4;
    Draft draft;
    Constraint *constraint = sampler.constraint();
    if (!constraint || most <= 0) return draft;
    const size_t wanted = static_cast<size_t>(most) * kBytesOfToken;
    const std::string forced = constraint->forced(text, wanted);
    if (forced.empty()) return draft;
    std::string before;
    for (const TokenId id : text.last(std::min(text.size(), kTokensBefore))) before += words_.text(id);
    std::vector<TokenId> tokens = words_.tokens(before + forced);
    // Keep the tokens after the text before, if a token begins there.
    size_t bytes = 0, first = 0;
    while (first < tokens.size() && bytes < before.size()) bytes += words_.text(tokens[first++]).size();
    if (bytes != before.size()) return draft;
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(first));
    if (!tokens.empty()) tokens.pop_back();
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(most)));
    tokens.resize(constraint->allowed(text, tokens));
    draft.probabilities.assign(tokens.size(), 1.0f);
    draft.tokens = std::move(tokens);
    return draft;
}

}  // namespace runnel::decode
