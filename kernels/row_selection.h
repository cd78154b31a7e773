// Top-k selection of logits on the host, in the order and with the values that Backend::execute() with candidates promises:
// from the rows of a part of the vocabulary, and from the candidates of several parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/row_cut.h"

namespace runnel::kernels {

// The most candidates that are worth a selection on the host: as many as GPUs select.
inline constexpr int32_t kMostSelected = 256;

// Selects the largest candidates.size() logits of a row, at least one and at most logits.size(). mask: of these tokens.
void select_candidates(std::span<const float> logits, TokenMask mask, std::span<TopLogit> candidates);
// The sum of exp(logit) over the tokens of the mask.
ExpSum sum_of_exp(std::span<const float> logits, TokenMask mask);

// The first candidates.size() of several sorted lists, which have at least as many together. The lists are used up.
void join_candidates(std::span<std::span<const TopLogit>> sorted, std::span<TopLogit> candidates);

// The bits of a part of the vocabulary, in `memory`: its first token is bit 0. Of an empty mask, an empty one.
TokenMask part_of_mask(TokenMask mask, const Range &tokens, std::vector<uint64_t> &memory);

}  // namespace runnel::kernels
