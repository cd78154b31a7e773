// Memory needs of models that need not exist: a model's program, or a bare shape, with any weight format and
// any cache type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/decode/cache_plan.h"
#include "gguf/block.h"
#include "kernels/program.h"

namespace runnel::measure {

// A llama-like decoder: every layer has attention and a gated MLP.
struct BareShape {
    int64_t layers = 0, width = 0, heads = 0, ff = 0, vocab = 0;
    int64_t kv_heads = 0;       // 0: heads
    int64_t head_dim = 0;       // 0: width / heads
    int64_t window = 0;         // tokens; 0: none
    int64_t window_layers = 0;  // layers with that window; 0 with a window: all
    int64_t latent = 0;         // values of one latent vector per token in place of K and V (MLA); 0: none
    bool tied = false;          // the output matrix is the embedding
};
// "layers=80,width=8192,heads=64,kv-heads=8,ff=28672,vocab=128256,tied=1". Throws std::invalid_argument, which
// names what is wrong.
BareShape parse_shape(const std::string &text);

// The program's weights have no bytes: it serves for planning only.
kernels::Program program_of(const BareShape &shape);

struct Parameters {
    double attention = 0, feed_forward = 0, embedding = 0, other = 0;
    double all() const { return attention + feed_forward + embedding + other; }
};
// Grouped by the names of the weights: "attn", "ffn", "token_embd" and "output".
Parameters parameters_of(const kernels::Program &program);

// Bytes of all weights if every matrix had format `format`; vectors stay F32. If a matrix's rows are not
// whole blocks, the format's bits per weight are used anyway.
double weight_bytes(const kernels::Program &program, gguf::Type format);
double weight_bytes(const kernels::Program &program);  // as they are
double bits_per_weight(gguf::Type format);

// Layers whose cache cells have the same layout.
struct CellGroup {
    int64_t layers;
    int32_t kv_heads, head_dim_k, head_dim_v;      // head_dim_v 0: values are part of the keys
    int32_t window, sinks;                         // window 0: all tokens
    bool f16_keys = false;                         // as in CacheLayer
    size_t bytes(decode::CacheTypes types) const;  // of one token in one layer
};
std::vector<CellGroup> cell_groups(const kernels::Program &program);

// The bytes that K and V of one more token take once the windows are full, and the same as a formula: "2 x 32
// layers x 8 heads x 128 values x 2 bytes".
size_t cell_bytes(const kernels::Program &program, decode::CacheTypes types);
std::string cell_formula(const kernels::Program &program, decode::CacheTypes types);

// The largest number of sequences of `context` tokens whose cache fits into `memory` bytes together with
// `weights` bytes; at most kMostContext / context.
int64_t sequences_that_fit(const kernels::Program &program, double weights, double memory, int64_t context,
                           decode::CacheTypes types);

}  // namespace runnel::measure
