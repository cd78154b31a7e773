// The logits of a tensor split (tensor_rank.h): each rank computes those of its part of the vocabulary, and rank 0 gets whole
// rows, or only the largest logits of each row.
//
// For the largest, a rank selects among its own logits, on the device or, if that does not select, on the host, and sends for
// each row min(count, its tokens) candidates and, if count is more than 1, a sum: 8 and 40 bytes each. Rank 0 joins them: the
// bits are those of one device, because candidates have one order and sums do not depend on theirs (exp_sum.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/row_cut.h"

namespace runnel::kernels {

class TensorLogits {
  public:
    // vocabulary: of the ranks (TensorProgram::vocabulary); empty: the program has no logits.
    TensorLogits(Backend &device, Communicator &communicator, const Cut &vocabulary);

    // The most candidates that this rank can select.
    int32_t most_candidates() const;

    // Memory for `rows` rows of this rank's logits.
    std::span<float> own_rows(size_t rows);
    // Sends `rows` rows of this rank's logits to rank 0, which joins them. logits: [rows][vocab] on rank 0.
    void give_rows(std::span<const float> own, size_t rows, std::span<float> logits);
    // The rank's logits of one row of the last batch.
    std::vector<float> read_row(int32_t row);

    // A batch with `rows` rows and candidates: the batch with the masks of this rank's part of the vocabulary. They are
    // valid until the next call.
    Batch begin(const Batch &batch, size_t rows, int32_t count);
    // Runs the last part of a batch of begin() on the device, and selects. Returns false if it was cancelled.
    bool execute(const Batch &part);
    // Sends what execute() selected to rank 0, which joins it. candidates, sums: as of Backend::execute(), on rank 0.
    void give_candidates(std::span<TopLogit> candidates, std::span<ExpSum> sums);

  private:
    bool selects_on_device() const { return device_.most_candidates() > 0; }
    size_t tokens(size_t rank) const { return static_cast<size_t>(vocabulary_[rank].size()); }
    // Candidates of a row that the rank sends.
    size_t each(size_t rank) const { return std::min(count_, tokens(rank)); }
    void join_row(size_t row, std::span<TopLogit> candidates, std::span<ExpSum> sums);

    Backend &device_;
    Communicator &communicator_;
    const Cut &vocabulary_;
    const size_t rank_;
    std::vector<float> logits_;  // [rows][tokens(rank_)]; only grows
    // Of the last batch of begin().
    size_t rows_ = 0, count_ = 0;
    std::vector<std::vector<uint64_t>> mask_bits_;  // by row; only grows
    std::vector<TokenMask> masks_;
    // [rows_][each(rank)], with numbers in the whole vocabulary, and [rows_]: this rank's, and on rank 0 those of all.
    std::vector<std::vector<TopLogit>> candidates_;
    std::vector<std::vector<ExpSum>> sums_;
};

}  // namespace runnel::kernels
