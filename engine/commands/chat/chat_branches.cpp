// Keeps the sequences of a chat's branches, and chooses the one that serves a prompt best.
#include <algorithm>
#include <utility>

#include "engine/commands/chat/chat_model.h"

namespace runnel::commands {

using completion::SequenceHandle;
using completion::TokenId;

namespace {

// Limit for kept sequences: each holds a copy of a long conversation's tokens.
constexpr size_t kMostKept = 16;

}  // namespace

ChatModel::Branches ChatModel::branches() const {
    Branches all;
    for (const SequenceHandle handle : kept_) {
        const decode::Sequence *sequence = queue_.kept(handle);
        (sequence->cache().length() == 0 && !sequence->tokens().empty() ? all.dropped : all.kept) += 1;
    }
    return all;
}

void ChatModel::forget() {
    for (const SequenceHandle handle : std::exchange(kept_, {})) queue_.release(handle);
}

// The kept sequence whose cache holds the longest beginning of the prompt; among equals, the one used last.
SequenceHandle ChatModel::best_for(const completion::Request &request) const {
    if (kept_.size() < 2) return kept_.empty() ? completion::kNoSequence : kept_.back();
    std::vector<TokenId> prompt;
    try {
        prompt = format_.make(request, static_cast<size_t>(engine_.executor().context())).tokens;
    } catch (const decode::DecodeError &) {  // the queue reports this error
        return kept_.back();
    }
    const auto reusable = [&](SequenceHandle handle) {
        const decode::Sequence *sequence = queue_.kept(handle);
        const auto most = std::min(prompt.size() - 1, static_cast<size_t>(sequence->cache().length()));
        const std::vector<TokenId> &tokens = sequence->tokens();
        const auto end = prompt.begin() + static_cast<std::ptrdiff_t>(most);
        const auto common = std::mismatch(prompt.begin(), end, tokens.begin()).first - prompt.begin();
        return sequence->cache().truncatable(static_cast<int32_t>(common));
    };
    SequenceHandle best = kept_.back();
    int32_t most = reusable(best);
    for (size_t i = kept_.size() - 1; i-- > 0;)
        if (const int32_t cells = reusable(kept_[i]); cells > most) best = kept_[i], most = cells;
    return best;
}

// Keeps `handle`. Above the limit, releases a sequence that is the beginning of another one, because the
// other one still covers its branch, or else the oldest.
void ChatModel::keep(SequenceHandle handle) {
    kept_.push_back(handle);
    if (kept_.size() <= kMostKept) return;
    const auto continued = [&](SequenceHandle one) {
        const std::vector<TokenId> &begin = queue_.kept(one)->tokens();
        return std::any_of(kept_.begin(), kept_.end(), [&](SequenceHandle other) {
            const std::vector<TokenId> &all = queue_.kept(other)->tokens();
            return other != one && all.size() >= begin.size() &&
                   std::equal(begin.begin(), begin.end(), all.begin());
        });
    };
    auto surplus = std::find_if(kept_.begin(), kept_.end() - 1, continued);
    if (surplus == kept_.end() - 1) surplus = kept_.begin();
    queue_.release(*surplus);
    kept_.erase(surplus);
}

}  // namespace runnel::commands
