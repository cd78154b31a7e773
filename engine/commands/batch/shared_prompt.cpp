#include "engine/commands/batch/shared_prompt.h"

#include <algorithm>
#include <utility>

#include "engine/decode/error.h"

namespace runnel::commands {

void SharedPrompt::add(const completion::Request &request) try {
    if (is_over_ || !stored_.is_on()) return;
    std::vector<text::TokenId> prompt =
        format_.make(request, static_cast<size_t>(engine_.executor().context())).tokens;
    if (!shared_) {
        stored_.load(prompt);
        shared_ = std::move(prompt);
    } else {
        is_shared_ = true;
        const auto end = std::mismatch(shared_->begin(), shared_->end(), prompt.begin(), prompt.end()).first;
        shared_->erase(end, shared_->end());
    }
    is_over_ = shared_->size() < kLeastStoredTokens;
} catch (const decode::DecodeError &) {  // the queue reports it
}

void SharedPrompt::save() {
    if (!is_shared_ || std::exchange(is_over_, true)) return;
    stored_.save(*shared_);
}

}  // namespace runnel::commands
