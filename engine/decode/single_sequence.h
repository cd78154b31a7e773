// One sequence with a scheduler of its own: for measurements, which compute tokens without sampling any.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/scheduler.h"

namespace runnel::decode {

class SingleSequence {
  public:
    explicit SingleSequence(Executor &executor) : SingleSequence(Sequence(executor)) {}
    explicit SingleSequence(Sequence sequence)
        : entry_(std::move(sequence)), scheduler_(entry_.executor(), {.parallel = 1}) {
        scheduler_.add(entry_);
    }
    SingleSequence(const SingleSequence &) = delete;
    SingleSequence &operator=(const SingleSequence &) = delete;

    // Appends tokens and computes them, at most batch_size() per pass; logits() are then those after the last
    // token. False when a stop was requested: tokens() has only the computed tokens, and there are no logits.
    // Throws DecodeError{BadInput} if they do not fit, and then appends nothing; throws what Scheduler::step
    // throws, and then keeps the passes before.
    bool feed(std::span<const TokenId> tokens, const StopRequest *stop = nullptr);
    // Computes what is due. Returns and throws what feed() returns and throws.
    bool compute(const StopRequest *stop = nullptr);

    void truncate(size_t length) { entry_.truncate(length); }
    size_t reuse(std::span<const TokenId> wanted) { return sequence().reuse(wanted); }
    std::span<const float> logits() const { return entry_.logits(); }
    bool has_logits() const { return entry_.has_logits(); }
    const std::vector<TokenId> &tokens() const { return entry_.tokens(); }
    ScheduledSequence &entry() { return entry_; }
    Sequence &sequence() { return entry_.sequence(); }
    const Sequence &sequence() const { return entry_.sequence(); }

  private:
    ScheduledSequence entry_;
    Scheduler scheduler_;
};

}  // namespace runnel::decode
