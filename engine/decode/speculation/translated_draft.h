// Drafts of a model with another vocabulary than the target's. The text stays exact whatever happens here: a
// badly translated draft is merely not accepted.
#pragma once

#include <memory>

#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_vocabulary.h"

namespace runnel::decode {

// `source` reads and drafts ids of the draft model; the result reads and drafts ids of the target. Depending
// on vocabulary.kind(): the source itself, through_ids or through_text. `vocabulary` must outlive the result.
std::unique_ptr<DraftSource> translated(std::unique_ptr<DraftSource> source,
                                        const DraftVocabulary &vocabulary);

// Maps token by token. A draft ends before a token without a counterpart; a branch with such a token is left
// out. The sampler that the source sees has the target's options, with the biases mapped to the counterparts.
std::unique_ptr<DraftSource> through_ids(std::unique_ptr<DraftSource> source,
                                         const DraftVocabulary &vocabulary);

// Tokenizes the text again: control tokens become their counterparts, all other tokens go through bytes. Only
// whole words of a draft are proposed, because the next word might change how the last one is tokenized. The
// probability of a proposed token is the product over the source's tokens that end in it. There are no
// branches. Old text is not tokenized again, so that the source sees the same tokens as before.
std::unique_ptr<DraftSource> through_text(std::unique_ptr<DraftSource> source,
                                          const DraftVocabulary &vocabulary);

}  // namespace runnel::decode
