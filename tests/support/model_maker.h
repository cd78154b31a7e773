// Models with random weights, for tests and benchmarks: the real tensors, metadata and vocabulary of a
// family, of any size, in any format.
//
//   ModelShape shape;                                   // a tiny llama in F32
//   shape.arch = "qwen3", shape.type = "Q4_K_M", shape.width = 256;
//   const TemporaryModel model(shape);                  // gone with its directory when it goes out of scope
//   model.file.find_tensor("blk.0.attn_q.weight");      // a gguf::File
//
//   make_model(shape, "model.gguf");                    // a file to keep; scripts/make-model calls it
//
// The weights depend only on the seed and on a tensor's name and size, not on its format: the same model can
// be made in every format, and `dequantized` writes as F32 the values that a format rounds them to. They are
// scaled so that a network of any depth has activations near 1, attention that is neither uniform nor
// one-hot, and logits with a standard deviation of about 2.5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "gguf/file.h"
#include "gguf/output_file.h"
#include "gguf/quantize.h"
#include "tests/support/temporary.h"

namespace runnel::testing {

// Sizes of the feed-forward half with experts, for families that have them (model_families.h).
struct ExpertShape {
    int64_t count = 0;  // 0: 8 in families with experts
    int64_t used = 2;
    int64_t ff = 0;             // hidden width of an expert; 0: ModelShape::ff
    int64_t leading_dense = 0;  // layers before the first with experts
    int64_t groups = 1, groups_used = 1;
    bool merged = false;  // gate and up in one tensor
};

struct ModelShape {
    std::string arch = "llama";  // a name of model_families.h
    int64_t layers = 2, width = 64, ff = 160;
    int64_t heads = 4, kv_heads = 2;
    int64_t head_dim = 0;  // 0: width / heads
    int64_t vocab = 320;   // at least 260
    int64_t context = 512;

    // A format ("F32", "Q4_0", ..., any that quantize_row writes; IQ1, IQ2 and IQ3 become random blocks,
    // which are other weights) or one of llama.cpp's mixes (Q3_K_M, Q4_K_M, Q5_K_M). As in llama.cpp, the
    // output matrix is Q6_K in quantized models of all formats but Q8_0; a matrix whose rows are not whole
    // blocks falls back to a format of 32 weights per block, or F16. Norms and biases are F32.
    std::string type = "F32";
    bool pure = false;         // no mix and no exceptions: every matrix in `type` if its rows allow it
    bool dequantized = false;  // F32 values rounded to `type`
    bool repeated = false;     // repeats a tensor's first two million weights: large models in little time

    bool tied = false;  // no output matrix: the embeddings are used
    bool bias = false;  // on q, k, v (and attention output in llama), besides those that the family has

    double rope_freq_base = 10000;
    std::string rope_scaling;  // "", "linear", "yarn", "llama3" (as rope_freqs.weight), "longrope"
    double rope_factor = 4;
    int64_t original_context = 0;  // before scaling; 0: context / rope_factor
    int64_t sliding_window = 0;    // 0: the family's, if it has one
    bool draft_block = false;      // one more layer, with attention: a next-token-prediction block

    ExpertShape experts = {};
    // For multi-head latent attention: head_dim is the size of the part of a head that is
    // not rotated, and of a value.
    int64_t latent_rank = 64, latent_q_rank = 96, latent_rotated = 16;

    // For gated delta nets: their heads and head size, and the heads of queries and keys; 0: those of attention.
    int64_t state_heads = 0, state_key_heads = 0, state_dim = 0;

    // For sparse attention. Layers that are not a multiple of the period have no indexer; 1: all have one.
    int64_t indexer_heads = 4, indexer_top_k = 256, indexer_period = 1;
    // For block-sparse attention, which has a head for each K/V head: top_k counts keys, and is a multiple of the block.
    int64_t indexer_block = 32, indexer_local = 1;

    uint64_t seed = 1;
    std::filesystem::path vocab_from;  // copy tokenizer.* of this GGUF file, and the size of its vocabulary
    gguf::Effort effort = gguf::Effort::Thorough;
    int threads = 2;
};

// Throws std::invalid_argument for invalid shapes, gguf::WriteError, gguf::FileError (vocab_from).
void make_model(const ModelShape &shape, const std::filesystem::path &out,
                const gguf::OutputOptions &options = {});

// A model in a temporary directory.
struct TemporaryModel {
    explicit TemporaryModel(const ModelShape &shape)
        : path((make_model(shape, directory / "model.gguf"), directory / "model.gguf")),
          file(gguf::File::open(path)) {}
    TemporaryDirectory directory;
    std::filesystem::path path;
    gguf::File file;
};

// The format called `name` in any case ("q4_K", "Q4_K"); throws std::invalid_argument.
gguf::Type parse_type(const std::string &name);

}  // namespace runnel::testing
