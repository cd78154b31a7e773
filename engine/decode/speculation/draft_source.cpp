#include "engine/decode/speculation/draft_source.h"

#include <algorithm>

namespace runnel::decode {

void draft_together(std::span<PendingDraft *const> drafts, const StopRequest *stop) {
    std::vector<PendingDraft *> open(drafts.begin(), drafts.end());
    while (!open.empty()) {
        PendingDraft *first = open.front();
        const auto others = std::stable_partition(
            open.begin(), open.end(), [&](PendingDraft *draft) { return draft->group() == first->group(); });
        first->complete({open.begin(), others}, stop);
        open.erase(open.begin(), others);
    }
}

}  // namespace runnel::decode
