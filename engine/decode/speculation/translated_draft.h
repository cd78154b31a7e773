// Drafts of a model whose tokens are not those of the model that it drafts for. Exactness does not depend on
// any of this: what was translated badly is not accepted.
#pragma once

#include <memory>

#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/draft_vocabulary.h"

namespace runnel::decode {

// `source` reads and drafts ids of the draft model; the result reads and drafts those of the model. As
// vocabulary.kind() says: the source itself, through_ids or through_text. The vocabulary is kept.
std::unique_ptr<DraftSource> translated(std::unique_ptr<DraftSource> source,
                                        const DraftVocabulary &vocabulary);

// One token for one token. A draft ends in front of a token without a counterpart, a branch with one is left
// out. The sampler that the source sees has the target's options, with the biases of the counterparts.
std::unique_ptr<DraftSource> through_ids(std::unique_ptr<DraftSource> source,
                                         const DraftVocabulary &vocabulary);

// The text of the tokens, cut into tokens again: control tokens by their counterparts, the rest as bytes. Of
// a draft, only whole words are proposed, as the next one might change how the last is cut; a proposed token
// is as probable as all of the source's tokens that end in it. There are no branches. Text long past is not
// cut again, so that the source sees the same tokens as before.
std::unique_ptr<DraftSource> through_text(std::unique_ptr<DraftSource> source,
                                          const DraftVocabulary &vocabulary);

}  // namespace runnel::decode
