#include "engine/decode/speculation/draft_vocabulary.h"

#include <algorithm>
#include <cstdio>

#include "engine/text/utf8.h"

namespace runnel::decode {
namespace {

// Below this share of tokens with a counterpart, on either side, the tokenizers count as different.
constexpr double kLeastShared = 0.95;
constexpr size_t kExamples = 3;

std::string_view family(const text::Tokenizer &tokenizer) {
    const std::string_view name = tokenizer.model_name();
    return name.substr(0, name.find('/'));
}

std::string quoted(const text::Tokenizer &tokenizer, TokenId id) {
    if (id >= tokenizer.size()) return "nothing";
    return '"' + text::printable_for_terminal(tokenizer.piece(id)) + '"';
}

// The tokens that can be sampled and have no counterpart.
std::vector<TokenId> unmatched(const text::Tokenizer &tokenizer, const std::vector<TokenId> &counterparts) {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < counterparts.size(); ++i) {
        const auto id = static_cast<TokenId>(i);
        if (counterparts[i] == text::kNoToken && tokenizer.is_sampleable(id)) ids.push_back(id);
    }
    return ids;
}

double share_of(size_t part, size_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

DraftVocabulary::DraftVocabulary(const text::Tokenizer &target, int32_t target_rows,
                                 const text::Tokenizer &draft, int32_t draft_rows)
    : target_(&target),
      draft_(&draft),
      draft_rows_(std::min(draft_rows, draft.size())),
      same_family_(family(target) == family(draft)),
      to_target_(static_cast<size_t>(draft_rows_), text::kNoToken),
      to_draft_(static_cast<size_t>(std::min(target_rows, target.size())), text::kNoToken) {
    if (same_family_) match_by_text();
    match_by_role();
    find_readable();
    judge();
}

bool DraftVocabulary::alike(TokenId target, TokenId draft) const {
    return target_->piece(target) == draft_->piece(draft) &&
           target_->is_control(target) == draft_->is_control(draft) &&
           target_->is_sampleable(target) == draft_->is_sampleable(draft) &&
           target_->is_end_of_generation(target) == draft_->is_end_of_generation(draft) &&
           target_->decode(target) == draft_->decode(draft);
}

// Two tokens of one side may have the same counterpart, which then maps back to the first of them.
void DraftVocabulary::pair(TokenId target, TokenId draft) {
    if (static_cast<size_t>(target) >= to_draft_.size() || static_cast<size_t>(draft) >= to_target_.size())
        return;
    TokenId &there = to_draft_[static_cast<size_t>(target)], &here = to_target_[static_cast<size_t>(draft)];
    if (there == text::kNoToken) there = draft;
    if (here == text::kNoToken) here = target;
}

void DraftVocabulary::match_by_text() {
    const auto shared = static_cast<TokenId>(std::min(to_target_.size(), to_draft_.size()));
    for (TokenId id = 0; id < shared; ++id)
        if (alike(id, id)) pair(id, id);
    for (const TokenId id : unmatched(*target_, to_draft_)) {
        const auto other = draft_->find(target_->piece(id));
        if (other && alike(id, *other)) pair(id, *other);
    }
}

// Pairs the tokens that end a text, end a turn or begin a text, whatever they are called.
void DraftVocabulary::match_by_role() {
    const auto match = [&](std::optional<TokenId> target, std::optional<TokenId> draft) {
        if (target && draft) pair(*target, *draft);
    };
    match(target_->eos(), draft_->eos());
    match(target_->eot(), draft_->eot());
    match(target_->eot(), draft_->eos());  // if one token ends both a text and a turn
    match(target_->eos(), draft_->eot());
    match(target_->bos(), draft_->bos());
}

void DraftVocabulary::find_readable() {
    readable_ = to_draft_;
    const TokenId neutral = std::clamp(draft_->eos().value_or(0), 0, std::max(draft_rows_ - 1, 0));
    for (size_t i = 0; i < readable_.size(); ++i) {
        if (readable_[i] != text::kNoToken) continue;
        readable_[i] = neutral;
        const std::string text = target_->decode(static_cast<TokenId>(i));
        if (text.empty() || !same_family_) continue;
        const auto ids = draft_->encode(text, {.add_special = false, .continues = true});
        if (!ids.empty() && ids.back() < draft_rows_) readable_[i] = ids.back();
    }
}

void DraftVocabulary::judge() {
    const std::vector<TokenId> here = unmatched(*target_, to_draft_), there = unmatched(*draft_, to_target_);
    bool moved = to_target_.size() != to_draft_.size();
    for (size_t i = 0; i < to_target_.size() && !moved; ++i) moved = to_target_[i] != static_cast<TokenId>(i);
    if (!moved && here.empty() && there.empty()) return;
    const double shared =
        1 - std::max(share_of(here.size(), to_draft_.size()), share_of(there.size(), to_target_.size()));
    char line[160];
    if (!same_family_ || shared < kLeastShared) {
        kind_ = Kind::Other;
        std::snprintf(line, sizeof line,
                      ", which lacks %zu of the model's %zu tokens: drafts are translated as text",
                      here.size(), to_draft_.size());
        note_ = "the draft model has another tokenizer, " +
                text::printable_for_terminal(draft_->model_name()) + " instead of " +
                text::printable_for_terminal(target_->model_name()) + line;
        return;
    }
    kind_ = Kind::Mapped;
    std::snprintf(
        line, sizeof line,
        "the draft model's tokens differ from the model's: %zu of its %zu have no counterpart and are "
        "not drafted",
        there.size(), to_target_.size());
    note_ = line;
    for (size_t i = 0; i < std::min(there.size(), kExamples); ++i)
        note_ += (i == 0 ? " (" : ", ") + std::to_string(there[i]) + ": " + quoted(*draft_, there[i]) +
                 ", here " + quoted(*target_, there[i]);
    if (!there.empty()) note_ += there.size() > kExamples ? ", ...)" : ")";
}

}  // namespace runnel::decode
