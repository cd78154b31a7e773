#include "tests/gpu/model/shapes.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/cuda/linear/linear.h"

namespace runnel::tests::model {

using kernels::cuda::TileFormat;

namespace {

const Shape kShapes[] = {
    {"Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128256},
    {"Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256},
    {"Llama-3-70B", 80, 8192, 28672, 64, 8, 128, 128256},
    {"Qwen3-30B-A3B", 48, 2048, 768, 32, 4, 128, 151936, 128, 8},
};

// In a Q4_K_M file, V and the down projection of half of the layers have 6 bits: the first and the last eighth, and
// every third layer between them.
bool has_more_bits(int layer, int layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

TileFormat plain_format(FileType type) {
    switch (type) {
        case FileType::Q4_K_M:
            return TileFormat::Q4_K;
        case FileType::Q8_0:
            return TileFormat::Q8_0;
        case FileType::F16:
            break;
    }
    return TileFormat::F16;
}

TileFormat more_bits(FileType type) {
    return type == FileType::Q4_K_M ? TileFormat::Q6_K : plain_format(type);
}

// Of V where it has not more bits: 5 bits in files of 70B.
TileFormat value_format(const Shape &shape, FileType type) {
    return type == FileType::Q4_K_M && shape.layers == 80 ? TileFormat::Q5_K : plain_format(type);
}

void add(TokenWork &work, const MatrixLaunch &launch) {
    for (MatrixLaunch &known : work.matrices)
        if (known.what == launch.what && known.format == launch.format) {
            known.count += launch.count;
            return;
        }
    work.matrices.push_back(launch);
}

void add_attention(TokenWork &work, const Shape &shape, FileType type, int layer) {
    const TileFormat format = plain_format(type);
    const TileFormat values =
        has_more_bits(layer, shape.layers) ? more_bits(type) : value_format(shape, type);
    const int64_t heads = int64_t{shape.heads} * shape.head_dim;
    const int64_t kv = int64_t{shape.kv_heads} * shape.head_dim;
    if (values == format) {
        add(work, {.what = "q, k and v", .format = format, .rows = heads + 2 * kv, .cols = shape.width});
    } else {
        add(work, {.what = "q and k", .format = format, .rows = heads + kv, .cols = shape.width});
        add(work, {.what = "v", .format = values, .rows = kv, .cols = shape.width});
    }
    add(work, {.what = "output", .format = format, .rows = shape.width, .cols = heads});
}

void add_feed_forward(TokenWork &work, const Shape &shape, FileType type, int layer) {
    const TileFormat down = has_more_bits(layer, shape.layers) ? more_bits(type) : plain_format(type);
    add(work, {.what = "gate and up",
               .format = plain_format(type),
               .rows = shape.feed_forward,
               .cols = shape.width,
               .gated = true,
               .experts = shape.experts_used});
    add(work, {.what = "down",
               .format = down,
               .rows = shape.width,
               .cols = shape.feed_forward,
               .experts = shape.experts_used});
}

TokenWork matrices_of(const Shape &shape, FileType type) {
    TokenWork work;
    for (int layer = 0; layer < shape.layers; ++layer) {
        add_attention(work, shape, type, layer);
        add_feed_forward(work, shape, type, layer);
    }
    add(work, {.what = "logits", .format = more_bits(type), .rows = shape.vocab, .cols = shape.width});
    return work;
}

}  // namespace

int64_t MatrixLaunch::bytes() const {
    return kernels::cuda::row_tiles(rows) * kernels::cuda::row_tile_bytes(format, cols) * (gated ? 2 : 1) *
           (experts > 0 ? experts : 1);
}

int TokenWork::launches() const {
    int all = other_launches;
    for (const MatrixLaunch &launch : matrices) all += launch.count;
    return all;
}

int64_t TokenWork::bytes() const {
    int64_t all = other_bytes;
    for (const MatrixLaunch &launch : matrices) all += launch.count * launch.bytes();
    return all;
}

namespace {

// Of a step, without the launches of matrices: `dense` or `mixture` per layer.
void add_others(TokenWork &work, const Shape &shape, int dense, int mixture, Version version) {
    // Embedding, first or last norm; gathering and quantizing of the logits' rows.
    constexpr int kOthers = 4;
    const bool mixes = shape.experts > 0;
    work.other_launches = kOthers + shape.layers * (mixes ? mixture : dense);
    work.other_bytes = int64_t{4} * shape.layers * shape.experts * shape.width;
    work.norms = (mixes && version == Version::Measured ? 1 : 2) * shape.layers;
}

}  // namespace

TokenWork one_token(const Shape &shape, FileType type, Version version) {
    // Attention. A mixture's layer also has the router's matrix with the choice of experts and their groups, and a sum, which
    // does the last norm. When it was measured, the router, the choice and the groups were three launches, and there
    // were quantizations before `down` and after the sum.
    constexpr int kDense = 1, kMixture = 3, kMeasured = 7;
    TokenWork work = matrices_of(shape, type);
    add_others(work, shape, kDense, version == Version::Now ? kMixture : kMeasured, version);
    return work;
}

TokenWork one_batch(const Shape &shape, FileType type, int tokens, Version version) {
    // As one_token(), but the norm before a mixture has a launch, and from 5 tokens on the norms of dense layers have.
    const int dense = version == Version::Now && tokens <= kernels::cuda::kSmallGroupTokens ? 1 : 3;
    constexpr int kMixture = 4, kMeasured = 8;
    TokenWork work = matrices_of(shape, type);
    const double all = shape.experts, passed_by = 1 - shape.experts_used / std::max(all, 1.0);
    const int chosen = static_cast<int>(std::lround(all * (1 - std::pow(passed_by, tokens))));
    for (MatrixLaunch &launch : work.matrices) {
        launch.inputs = tokens;
        if (launch.experts == 0) continue;
        launch.inputs *= static_cast<double>(shape.experts_used) / chosen;
        launch.experts = chosen;
    }
    add_others(work, shape, dense, version == Version::Now ? kMixture : kMeasured, version);
    return work;
}

int64_t file_bytes(const Shape &shape, FileType type) {
    TokenWork work = matrices_of(shape, type);
    int64_t all = 0;
    for (MatrixLaunch launch : work.matrices) {
        if (launch.experts > 0) launch.experts = shape.experts;
        all += launch.count * launch.bytes();
    }
    const bool tied = shape.width <= 2048 && shape.experts == 0;
    if (tied) return all;
    const MatrixLaunch embedding{
        .what = "", .format = plain_format(type), .rows = shape.vocab, .cols = shape.width};
    return all + embedding.bytes();
}

std::span<const Shape> shapes() {
    return kShapes;
}

const Shape &shape(const std::string &name) {
    for (const Shape &s : kShapes)
        if (s.name == name) return s;
    throw std::out_of_range("no shape " + name + " in the cost model");
}

const char *name_of(FileType type) {
    switch (type) {
        case FileType::Q4_K_M:
            return "Q4_K_M";
        case FileType::Q8_0:
            return "Q8_0";
        case FileType::F16:
            break;
    }
    return "F16";
}

}  // namespace runnel::tests::model
