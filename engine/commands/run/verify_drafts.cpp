#include "engine/commands/run/verify_drafts.h"

#include <algorithm>

#include "engine/commands/generation.h"
#include "engine/decode/error.h"
#include "engine/decode/memory_plan.h"
#include "gguf/printable.h"

namespace runnel::commands {

void check_draft_flags(const RunOptions &options) {
    const bool drafts = drafting_options(options.draft, options.model).has_value();
    if (drafts && options.beams > 1) throw UsageError("--beams cannot be combined with drafts");
    if (!options.verify_drafts) return;
    if (!drafts) throw UsageError("--spec-verify needs drafts: --draft-model, --lookup or --self-draft");
    if (options.samples > 1) throw UsageError("--spec-verify compares one answer, not --samples");
    if (options.draft.rule == decode::DraftRule::Rejection)
        throw UsageError("--spec-verify needs --draft-rule same: with rejection the text may differ");
}

void expect_room_for_two(const decode::Executor &executor) {
    const bool bounded = executor.context() < decode::kMostContext;  // otherwise a window bounds the memory
    if (bounded && executor.cells() / 2 < executor.context())
        throw decode::DecodeError(
            decode::DecodeError::Kind::OutOfMemory,
            "--spec-verify decodes the text twice at the same time, but the cache holds " +
                std::to_string(executor.cells()) + " tokens, less than two contexts of " +
                std::to_string(executor.context()) + ": set -c to " + std::to_string(executor.cells() / 2) +
                " or less");
}

DraftComparison compare_answers(const completion::Done &drafted, const completion::Done &plain, bool stopped,
                                const text::Tokenizer &tokenizer) {
    const auto &a = drafted.tokens, &b = plain.tokens;
    const auto place =
        static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    const size_t common = std::min(a.size(), b.size());
    const bool same =
        stopped ? place == common : place == a.size() && place == b.size() && drafted.reason == plain.reason;
    if (same) return {"", common};
    const auto token = [&](const std::vector<text::TokenId> &tokens) {
        if (place >= tokens.size()) return std::string("the end");
        return std::to_string(tokens[place]) + " " + gguf::quoted(tokenizer.decode(tokens[place]));
    };
    return {"token " + std::to_string(place) + " of the answer is " + token(a) + " with drafts and " +
                token(b) + " without",
            common};
}

}  // namespace runnel::commands
