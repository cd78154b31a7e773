// Draft heads: files that hold no model but layers that draft for one, their target.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/model.h"
#include "gguf/file.h"
#include "kernels/program.h"

namespace runnel::model {

enum class HeadKind {
    Eagle3,     // eagle3.h
    Assistant,  // of Gemma 4: assistant.h
    DFlash,     // dflash.h
};
// By general.architecture; nullopt: the file is no head.
std::optional<HeadKind> head_kind(const gguf::File &file);
// "an EAGLE-3 head"
std::string_view head_title(HeadKind kind);

// What a head says about its target.
struct HeadTarget {
    HeadKind kind;
    int64_t width;                // of the target's hidden states
    std::vector<int64_t> layers;  // whose inputs the head reads, counted from 0; empty: only the last state
    int64_t draft_rows = 0;       // tokens that the head can draft; 0: all of the target's
};
// Throws ModelError for a file that is no valid head.
HeadTarget head_target(const gguf::File &file);

struct DraftHead {
    HeadKind kind;
    // One part, as in draft_block.h: its `in` slot is the state of the token before, its `out` slot the state that takes
    // its place in the next step. The target's program has a slot with the name and width of `out`: the state to begin with.
    kernels::Program program;
    std::vector<int32_t> tokens;     // of the target, by row of the logits; empty: row i is token i
    std::vector<std::string> notes;  // for the user, one line each

    // Of a DFlash drafter, which guesses blocks of tokens: the program that does. It has the same cache layers as
    // `program`, which only appends keys and values of the text, and whose `out` is its `in`.
    kernels::Program block = {};
    int32_t block_tokens = 0, mask = -1;  // tokens of a block, the first included; the token of the others
    bool both_ways = false;  // the tokens of a block see each other both ways (kernels/backend.h)
};

// Makes the program of a head, and adds to that of `target` the steps that the head needs there; its logits keep their
// bits. Throws ModelError for a file that is no valid head or does not fit the target. The weights point into the two
// mapped files. context: as in model::build().
DraftHead add_head(Model &target, const gguf::File &target_file, const gguf::File &head, int64_t context = 0);

}  // namespace runnel::model
