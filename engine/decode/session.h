// One sequence of tokens and its cache: fed in chunks, rolled back, continued from a common prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

class Session {
  public:
    explicit Session(Executor &executor) : executor_(&executor), cache_(executor.new_sequence()) {}

    // Appends tokens, at most batch_size() at a time. Then logits() are those after the last one. Returns
    // false when a stop was requested on the way: tokens() tells how far it came, and logits() are undefined.
    // Throws DecodeError{BadInput} when there is no room for all of them (nothing is fed then), and what
    // Executor::step throws (the session keeps the chunks before).
    bool feed(std::span<const TokenId> tokens, const StopRequest *stop = nullptr);

    // After the token fed last. Precondition: has_logits().
    std::span<const float> logits() const { return logits_; }
    bool has_logits() const { return has_logits_; }

    // Keeps the first `length` tokens. Precondition: 0 <= length <= tokens().size().
    void truncate(size_t length);

    // Keeps what is a common prefix with `wanted`, but not all of `wanted`: at least its last token is left
    // to be fed, so that there are logits to go on from. Returns the length kept.
    size_t reuse(std::span<const TokenId> wanted);

    const std::vector<TokenId> &tokens() const { return tokens_; }
    size_t room() const { return static_cast<size_t>(executor_->context()) - tokens_.size(); }
    Executor &executor() const { return *executor_; }

  private:
    Executor *executor_;
    SequenceCache cache_;
    std::vector<TokenId> tokens_;
    std::vector<float> logits_;
    bool has_logits_ = false;
};

}  // namespace runnel::decode
