// One sequence of tokens and its cache: given tokens, computed in steps, rolled back, continued from a common
// prefix. The cache may lag behind the tokens: what it lacks is computed by a Scheduler, from a prompt's
// first chunk to the one token of a running answer, and again when the blocks had to be given up in between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/logit_rows.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

class Session {
  public:
    explicit Session(Executor &executor) : executor_(&executor), cache_(executor.new_sequence()) {}

    // Appends tokens and computes them, at most batch_size() at a time. Then logits() are those after the
    // last one. Returns false when a stop was requested on the way: tokens() tells how far it came, and there
    // are no logits. Throws DecodeError{BadInput} when there is no room for all of them (nothing is fed
    // then), and what Scheduler::step throws (the session keeps the chunks before).
    bool feed(std::span<const TokenId> tokens, const StopRequest *stop = nullptr);

    // Appends tokens for a scheduler to compute; then logits() are those after the last `rows` of them.
    // Throws DecodeError{BadInput} when there is no room for all of them. Preconditions: !due(),
    // 1 <= rows <= tokens.size() <= executor().batch_size() or rows == 1.
    void append(std::span<const TokenId> tokens, int32_t rows = 1);

    // Guesses behind tokens that are due: logits() will have one more row for each. Preconditions: due(),
    // there is room(), and the rows are at most executor().batch_size().
    void append_drafts(std::span<const TokenId> drafts);

    // Other guesses in place of the drafts behind the first `shared`: a branch of a tree, which is computed
    // in the same pass, on a fork of the cache, without computing again what it shares. Where a step has no
    // room for it, it is left out. Preconditions: drafts were appended, more than `shared`; the branch is not
    // empty and no longer than what of the context is behind `shared` drafts.
    void append_branch(size_t shared, std::span<const TokenId> guesses);
    size_t branches() const { return branches_.size(); }
    // Behind each of the branch's own guesses. Empty: it was left out. Valid as rows() are.
    const LogitRows &branch_rows(size_t branch) const { return branches_[branch].rows; }
    // The text is the branch's from here on, with all its guesses. Precondition: it was computed.
    void choose_branch(size_t branch);

    // Computes what is due, alone. Returns and throws what feed() does.
    bool compute(const StopRequest *stop = nullptr);

    // Waits for a scheduler to compute what it lacks.
    bool due() const { return due_; }
    // Tokens that are not in the cache, without those of branches;
    size_t pending() const { return tokens_.size() - static_cast<size_t>(cache_.length()); }
    // the guesses of all branches.
    size_t branch_tokens() const;

    // After the last tokens appended, as many as append() and append_drafts() asked for. Empty as long as
    // they are not computed. Valid until the next step of the scheduler that computed them.
    const LogitRows &rows() const { return rows_; }
    // [rows][vocab]: those, where they are whole, as they are unless want_candidates() says otherwise.
    std::span<const float> logits() const { return rows_.whole(); }
    bool has_logits() const { return !logits().empty(); }

    // Of each row that comes next, of branches too, the `count` largest logits are enough; 0: whole rows are
    // wanted. That holds until they are computed.
    void want_candidates(int32_t count) { wanted_candidates_ = count; }
    int32_t wanted_candidates() const { return wanted_candidates_; }

    // Keeps the first `length` tokens, and no branch. Precondition: length <= tokens().size(). What the
    // cache cannot keep of them (SequenceCache::truncatable) is computed again, with the same result.
    void truncate(size_t length);

    // Forgets the older half of what is behind the first `keeping` tokens. What is left becomes a text of its
    // own, to be computed with what is appended next: keys and values that were made in sight of the
    // forgotten part would still know of it. Returns how many tokens went: 0 when there are not two of them.
    size_t make_room(size_t keeping);

    // Begins as `wanted` does, with what the session or anything computed before has in common with it, but
    // not all of `wanted`: at least its last token is left to be fed, so that there are logits to go on from.
    // Returns the length.
    size_t reuse(std::span<const TokenId> wanted);

    // A second sequence of the same tokens, in the same blocks. Precondition: !due().
    Session fork() const;

    // Gives the cache's blocks back and keeps the tokens: they are computed again when it is due.
    void evict();

    const std::vector<TokenId> &tokens() const { return tokens_; }
    const SequenceCache &cache() const { return cache_; }
    size_t room() const { return static_cast<size_t>(executor_->context()) - tokens_.size(); }
    Executor &executor() const { return *executor_; }

  private:
    friend class Scheduler;

    struct Branch {
        size_t from;  // its guesses stand behind the first `from` tokens
        std::vector<TokenId> guesses;
        SequenceCache cache = {};
        LogitRows rows = {};
    };

    Executor *executor_;
    SequenceCache cache_;
    std::vector<TokenId> tokens_;
    int32_t wanted_rows_ = 1;
    int32_t wanted_candidates_ = 0;  // of each
    bool due_ = false;
    std::vector<Branch> branches_;

    LogitRows rows_;
    StepOutput own_output_;  // of feed()
};

}  // namespace runnel::decode
