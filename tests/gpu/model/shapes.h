// The launches of one decoded token: models by their shape, with the formats that a file of a type has.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/linear/tiles.h"

namespace runnel::tests::model {

struct Shape {
    std::string name;
    int layers, width, feed_forward, heads, kv_heads, head_dim, vocab;
    int experts = 0, experts_used = 0;  // feed_forward is then one expert's
    int activated() const { return experts > 0 ? experts_used : 1; }
};

std::span<const Shape> shapes();
const Shape &shape(const std::string &name);  // throws std::out_of_range

enum class FileType { Q4_K_M, Q8_0, F16 };
const char *name_of(FileType type);

// A launch of the kernel of matrices: matrices of one format, one input.
struct MatrixLaunch {
    std::string what;  // "gate and up"
    kernels::cuda::TileFormat format;
    int64_t rows, cols;  // of all matrices; of a gated pair: of one of both
    bool gated = false;
    int experts = 0;  // 0: no mixture; the matrices that a step uses
    int count = 1;    // of such launches in a step
    double inputs =
        1;  // rows of activations that a block reads: all tokens, or those that chose its expert, on average
    int64_t bytes() const;
};

// Whose launches: of this program, or of what ran on an H200 in November 2026 (calibration.h): its matrix kernels read their
// input through L1, nothing was fetched ahead, and a mixture's layer had four launches more.
enum class Version { Now, Measured };

// A token's launches. The other ones (embedding, attention, norms, routing ...) are counted only.
struct TokenWork {
    std::vector<MatrixLaunch> matrices;
    int other_launches = 0;
    int64_t other_bytes = 0;  // the routers' matrices, of 32 bits
    int norms = 0;            // that the last block of a launch computes
    int launches() const;
    int64_t bytes() const;
};

TokenWork one_token(const Shape &shape, FileType type, Version version = Version::Now);
// One token of each of 2 to 8 sequences: from 5 on norms have launches of their own, but for those of a mixture's sum. The experts
// of a mixture are those that so many tokens choose on average, if they choose evenly.
TokenWork one_batch(const Shape &shape, FileType type, int tokens, Version version = Version::Now);

// Bytes of all weights, the embedding included: whether a device can hold the model.
int64_t file_bytes(const Shape &shape, FileType type);

}  // namespace runnel::tests::model
