// Whether a draft model has the same tokens as its target: compares them one by one, before drafting starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::decode {

using text::TokenId;

// Maps tokens between the vocabularies of the draft model and the target. Two tokens are the same when their
// text, kind (text or control) and role (whether they end an answer) are.
class DraftVocabulary {
  public:
    enum class Kind {
        Same,    // every id means the same
        Mapped,  // all but a few tokens have a counterpart, maybe of another id; those few are never drafted
        Other,   // another tokenizer: drafts go through text
    };

    // Both tokenizers must outlive this object. `target_rows`, `draft_rows`: rows of the models' outputs,
    // which may be more than there are tokens (padding) or fewer.
    DraftVocabulary(const text::Tokenizer &target, int32_t target_rows, const text::Tokenizer &draft,
                    int32_t draft_rows);

    Kind kind() const { return kind_; }
    // A line for the user: how many tokens differ, which ones, and what that means for drafts. Empty for
    // Same.
    const std::string &note() const { return note_; }

    // kNoToken if there is no counterpart, and for ids outside of the vocabulary.
    TokenId to_target(TokenId draft) const { return look_up(to_target_, draft); }
    TokenId to_draft(TokenId target) const { return look_up(to_draft_, target); }
    // A token that the draft model can read in place of `target`: its counterpart, or an approximation.
    TokenId readable(TokenId target) const { return look_up(readable_, target); }

    const text::Tokenizer &target() const { return *target_; }
    const text::Tokenizer &draft() const { return *draft_; }
    int32_t draft_rows() const { return draft_rows_; }

  private:
    static TokenId look_up(const std::vector<TokenId> &table, TokenId id) {
        return id >= 0 && static_cast<size_t>(id) < table.size() ? table[static_cast<size_t>(id)]
                                                                 : text::kNoToken;
    }
    bool alike(TokenId target, TokenId draft) const;
    void match_by_text();
    void match_by_role();
    void pair(TokenId target, TokenId draft);
    void find_readable();
    void judge();

    const text::Tokenizer *target_, *draft_;
    int32_t draft_rows_;
    bool same_family_;  // both tokenizers spell pieces alike
    std::vector<TokenId> to_target_, to_draft_, readable_;
    Kind kind_ = Kind::Same;
    std::string note_;
};

}  // namespace runnel::decode
