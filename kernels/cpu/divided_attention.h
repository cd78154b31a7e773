// Attention over a cache layer whose cells are divided over ranks (CacheLayer::divided): of each sequence, a rank holds some
// ranges of kRangeCells cells. Every rank has the queries, keys and values of all new tokens, and ends with the outputs of all.
//
// There are two ways. Both join the ranges of a row in ascending order, as attention.h says, so both have the bits of one
// device, whatever the number of ranks and whichever range is where:
// - Few tokens of a sequence (decode, drafts): the queries are everywhere already. A rank computes the partial results of its
//   ranges, they are gathered, and every rank joins them.
//   Received: heads * (head_dim_v + 2) * 4 bytes per token for each range of another rank.
// - Many tokens: keys and values pass from rank to rank ("ring attention", Liu et al. 2023, arXiv 2310.01889). A rank attends
//   for some K/V heads, or, if the ranks do not divide these evenly, for some tiles of tokens. In each turn it receives one
//   range per rank, of the K/V heads that it needs, while it attends to those of the turn before. Then outputs are gathered.
//   Received: the pages of the other ranks' cells; of 1 / ranks of the K/V heads, or of all.
// The price per layer is one exchange with few tokens, and one per turn with many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "kernels/cpu/attention_runner.h"

namespace runnel::kernels::cpu {

class DividedAttention {
  public:
    using Surroundings = AttentionRunner::Surroundings;

    DividedAttention() = default;
    explicit DividedAttention(const Surroundings &surroundings) : s_(surroundings) {}

    // `ranks` must outlive the next attend().
    void connect(Communicator &ranks) { ranks_ = &ranks; }

    // Called by all threads. Thread 0 exchanges. If that fails, the outputs are undefined from then on, failed() is true, and
    // all ranks have failed.
    void attend(const AttentionRunner &runner, const Attention &step, const Batch &batch,
                int thread) noexcept;

    // Between phases, on thread 0.
    bool failed() const noexcept { return error_ != nullptr; }
    // Throws what failed, if something did, and forgets it.
    void check();

  private:
    using Spans = std::span<const SequenceSpan>;

    // A range of cells of a sequence, and the rank that holds it.
    struct HeldRange {
        size_t span;
        int32_t range, rank;
    };
    // What a rank attends for: a tile of tokens and a K/V head.
    struct Unit {
        int32_t tile, kv_head;
    };

    template <typename F>
    bool guard(F &&f) noexcept;
    int32_t ranks() const { return ranks_->size(); }
    int32_t group(const Attention &step) const {
        return s_.program->cache_layers[static_cast<size_t>(step.cache)].group;
    }
    int32_t rank_of(const Attention &step, const SequenceSpan &span, int32_t range) const;

    void attend_few(const AttentionRunner &runner, const Attention &step, Spans spans, int thread) noexcept;
    void list_ranges(const Attention &step, Spans spans);
    void gather_partials(const AttentionRunner &runner, const Attention &step, Spans spans);
    float *partial(const AttentionTile &tile, size_t span, int32_t kv_head, int32_t range);

    void attend_many(const AttentionRunner &runner, const Attention &step, const SequenceSpan &span,
                     int thread) noexcept;
    bool by_heads(const Attention &step) const { return step.kv_heads % ranks() == 0; }
    int32_t rank_of(const Attention &step, const Unit &unit) const;
    AttentionTile tile(const AttentionRunner &runner, const Attention &step, const SequenceSpan &span,
                       const Unit &unit) const;
    void list_units(const AttentionRunner &runner, const Attention &step, const SequenceSpan &span);
    void fetch(const Attention &step, const SequenceSpan &span, int32_t turn);
    void gather_outputs(const AttentionRunner &runner, const Attention &step, const SequenceSpan &span);

    Surroundings s_{};
    Communicator *ranks_ = nullptr;
    std::exception_ptr error_;
    bool ready_ =
        false;  // nothing has failed yet: thread 0 says so before a barrier, for the code up to the next one

    std::vector<std::byte> sent_, received_;
    std::vector<size_t> sizes_;  // of gathered pieces, by rank
    // Few tokens. partials_: [span][K/V head][range], span s from first_partial_[s] on.
    std::vector<HeldRange> held_;  // of all ranks
    std::vector<HeldRange> own_;
    std::vector<float> partials_;
    std::vector<size_t> first_partial_;
    // Many tokens.
    std::vector<Unit> units_;          // of this rank
    std::vector<float> joined_;        // by unit: the result of the ranges so far
    std::vector<float> range_;         // by thread: the result of one range
    size_t partial_size_ = 0;          // floats of a unit in joined_, and of a thread in range_
    std::vector<std::byte> turns_[2];  // pages of two turns: [range][block][K/V head][K page, V page]
    std::vector<BlockId> turn_table_;  // where a block of the sequence is in its turn
    int64_t attended_ = 0;             // units that threads have finished, in all turns; used as an atomic
    size_t k_page_ = 0, v_page_ = 0;   // bytes
    int32_t first_head_ = 0, end_head_ = 0;  // K/V heads in turns_
};

}  // namespace runnel::kernels::cpu
