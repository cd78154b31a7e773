// --spec-verify: the same request without drafts, side by side, must give the same tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/commands/options.h"
#include "engine/completion/event.h"
#include "engine/decode/engine.h"

namespace runnel::commands {

// Throws UsageError for contradictory draft options.
void check_draft_flags(const RunOptions &options);
// Throws DecodeError{OutOfMemory} if the cache cannot hold the text twice.
void expect_room_for_two(const decode::Executor &executor);

struct DraftComparison {
    std::string difference;  // empty: there is none
    size_t compared;         // tokens
};
// If the request was stopped, only the tokens that both answers have are compared.
DraftComparison compare_answers(const completion::Done &drafted, const completion::Done &plain, bool stopped,
                                const text::Tokenizer &tokenizer);

}  // namespace runnel::commands
