// A sequence of a Scheduler: what the next pass computes for it, and the rows of the last pass.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/logit_rows.h"
#include "engine/decode/sequence.h"

namespace runnel::decode {

// Most drafts after one token in a pass. A token with its drafts is a continuation, which a prompt never
// delays.
inline constexpr int32_t kMostDrafts = 31;
// The most sequences whose drafts are made in common passes.
inline constexpr int32_t kMostDraftedTogether = 32;

// An alternative to the end of a sequence's drafts, computed in the same pass on a fork of the cache.
struct DraftBranch {
    size_t from;  // they follow the first `from` tokens of the sequence
    std::vector<TokenId> tokens;
    SequenceCache cache = {};  // empty before its pass
    LogitRows rows = {};       // one for each token; empty: the pass had no room for the branch
};

// Writes the tokens that may follow `history`, as in kernels::TokenMask. False, and `bits` is undefined, if the
// row needs no mask.
using RowMask = std::function<bool(std::span<const TokenId> history, std::span<uint64_t> bits)>;

class ScheduledSequence {
  public:
    explicit ScheduledSequence(Executor &executor) : sequence_(executor) {}
    explicit ScheduledSequence(Sequence sequence) : sequence_(std::move(sequence)) {}

    const Sequence &sequence() const { return sequence_; }
    Sequence &sequence() { return sequence_; }
    const std::vector<TokenId> &tokens() const { return sequence_.tokens(); }
    Executor &executor() const { return sequence_.executor(); }

    // Appends tokens to compute; rows() are then those of the last `rows` tokens. Throws what
    // Sequence::append does. Preconditions: !due(), 1 <= rows <= tokens.size(), rows <= batch_size().
    void append(std::span<const TokenId> tokens, int32_t rows = 1);
    // Appends drafts after the due tokens; each adds a row. Preconditions: due(), they fit free_cells(), and
    // the rows fit batch_size().
    void append_drafts(std::span<const TokenId> drafts);
    // Appends a branch: another continuation after the first `shared` drafts. A pass without room skips it.
    // Preconditions: more than `shared` drafts were appended; `tokens` is not empty and fits the context.
    void append_branch(size_t shared, std::span<const TokenId> tokens);
    // Requests only the `count` largest logits of each row, among the tokens in its mask; 0: whole rows. Holds for
    // the next pass only. An empty `mask`: all tokens.
    void want_candidates(int32_t count, RowMask mask = {}) {
        candidates_ = count;
        mask_ = std::move(mask);
    }

    // True while tokens are to be computed or rows of logits to be returned.
    bool due() const { return due_; }
    // The rows that append() and append_drafts() requested. Empty until computed; valid until the next step
    // of the scheduler.
    const LogitRows &rows() const { return rows_; }
    // [rows][vocab]; empty if the pass selected candidates only.
    std::span<const float> logits() const { return rows_.whole(); }
    bool has_logits() const { return !logits().empty(); }
    std::span<const DraftBranch> branches() const { return branches_; }
    // The number of tokens of all branches.
    size_t branch_tokens() const;
    // The number of tokens computed for this sequence so far, recomputed ones included.
    int64_t computed() const { return computed_; }

    // Continues the sequence with the branch and all its tokens. Precondition: the branch was computed.
    void choose_branch(size_t branch);
    // Keeps the first `length` tokens and no branch; nothing is due.
    void truncate(size_t length);
    // Keeps what is computed; nothing is due.
    void settle() { truncate(static_cast<size_t>(sequence_.cache().length())); }

    // For the scheduler.
    int32_t wanted_rows() const { return wanted_rows_; }
    int32_t wanted_candidates() const { return candidates_; }
    const RowMask &mask() const { return mask_; }
    std::vector<DraftBranch> &branches() { return branches_; }
    void count_computed(size_t tokens) { computed_ += static_cast<int64_t>(tokens); }
    void set_rows(const LogitRows &rows);  // call once all tokens are computed
    void drop_rows() { rows_ = {}; }
    void drop_branch_caches();
    void evict();

  private:
    Sequence sequence_;
    bool due_ = false;
    int32_t wanted_rows_ = 1, candidates_ = 0;
    RowMask mask_;
    std::vector<DraftBranch> branches_;
    LogitRows rows_;
    int64_t computed_ = 0;
};

}  // namespace runnel::decode
