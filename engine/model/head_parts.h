// What the kinds of draft heads have in common: which tokens they draft, and the matrices that they may take from the target.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/builder.h"
#include "engine/model/model.h"
#include "gguf/file.h"

namespace runnel::model {

// The rows of the tensor d2t: the tokens that a head can draft; 0: all, since there is none. Throws ModelError.
int64_t draft_rows(const gguf::File &head);
// The target's tokens by row of the output matrix; empty: row i is token i. Throws ModelError.
std::vector<int32_t> draft_tokens(const gguf::File &head, int64_t vocab);

// "the target (llama) has 32 layers"
std::string target_has(const Model &target, int64_t count, std::string_view what);
// Throws ModelError if both files have a tokenizer, of different sizes.
void check_same_tokens(const Model &target, const gguf::File &target_file, const gguf::File &head);

// The step that reads the target's token embeddings. Throws ModelError if there is none.
const kernels::Embed &embedding_of(const Model &target, const gguf::File &head);

// The matrices of tokens; those of the target take the place of missing ones. Throws ModelError if they do not fit.
// builder: hyper().vocab is the number of rows of the output matrix.
struct HeadMatrices {
    const gguf::File &head;
    Builder &builder;
    const Model &target;
    const gguf::File &target_file;

    kernels::WeightId embedding() const;
    // tied: the head's own embeddings take the place of a missing output matrix before those of the target.
    kernels::WeightId output(bool tied = false) const;

  private:
    kernels::WeightId borrow(const char *name, kernels::WeightId of_target) const;
};

}  // namespace runnel::model
