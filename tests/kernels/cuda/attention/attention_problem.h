// Batches of attention for the kernels alone: random problems, their launches on the (emulated)
// device, and the exact results.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "tests/kernels/cuda/attention/cache_cells.h"
#include "tests/simt/simt.h"

namespace runnel::tests {

using kernels::CacheType;

struct Sequence {
    int32_t past, count;
    bool both_ways = false;
    int32_t common_end() const { return both_ways ? past + count : 0; }
};

struct Shape {
    kernels::Attention step;  // heads, dims, scale, window, softcap, norm order
    std::vector<Sequence> sequences;
    std::optional<kernels::RopeTable> rope;
    bool head_norm = false, sinks = false, factors = false;
    CacheType k_type = CacheType::F16, v_type = CacheType::F16;
    int32_t first_position = 0;  // of every sequence's cell 0
    bool latent = false;         // values are the first dimensions of the keys
    bool slopes = false;         // biases by distance
    int32_t top_k = 0;  // blocks in a list of chosen cells; 0: there are none, a token attends to all

    bool wide() const {
        return top_k > 0 || kernels::cuda::is_wide(latent, step.head_dim_k, step.head_dim_v);
    }
    // Numbers of blocks that a token chooses.
    int32_t choice() const { return top_k * step.chosen_lists; }
    bool rotates_k() const { return !latent && kernels::rotates_keys(k_type); }
    bool rotates_v() const { return !latent && kernels::rotates_values(v_type); }
};

// Narrow heads: Split runs sequences of up to 16 rows by decode, the others by prefill.
// Wide heads, and chosen cells: Decode runs splits side by side, Prefill in order; Split has memory for half of them only.
// Held, without windows and chosen cells: a launch for the even ranges of kRangeCells cells and one for the odd ones, as on two
// devices, and a join.
enum class Way { Decode, Prefill, Split, Held };

// A batch on the host: inputs and exact results.
struct Problem {
    Shape shape;
    std::vector<float> q, k, v;  // [token][heads][dim]
    std::vector<float> q_norm, k_norm, sinks, slopes, factors;
    std::vector<int32_t> positions;
    std::vector<std::vector<CacheCell>> old_k, old_v;  // per sequence: [cell][kv_head]
    std::vector<int32_t> tables;
    int64_t table_stride = 0;
    int32_t blocks = 0;
    std::vector<float> chosen = {};  // [token][lists][top_k], random blocks in ascending order, then -1

    int32_t tokens() const { return static_cast<int32_t>(positions.size()); }
};

using Bytes = std::vector<unsigned char>;

struct Result {
    std::vector<float> out;
    Bytes k_cache, v_cache;
    std::vector<simt::LaunchReport> reports;
};

// attention with this many heads and no other options
kernels::Attention attention(int32_t heads, int32_t kv_heads, int32_t dim_k, int32_t dim_v);
kernels::RopeTable rope_table(kernels::RopeTable::Pairs pairs, int32_t rotated);

Problem make_problem(const Shape &shape, uint64_t seed);

// filled: a previous result whose cache is used again; then nothing is appended.
Result run(const Problem &problem, Way way, uint32_t blocks = 3, const Result *filled = nullptr);

// Checks the output and the appended cells, within rounding errors.
void check_close(const Problem &problem, const Result &result);

// The last tokens of the first sequence, with the cells of the others that a run left in the cache.
Problem tail_of(const Problem &problem, const Result &whole, int32_t past);

// One sequence of a problem, alone.
Problem alone(const Problem &problem, size_t sequence);

// Decode and prefill against the reference, and against each other bit for bit.
void check_shape(const Shape &shape, uint64_t seed);

// Checks that the bits do not depend on the kernel, the grid, the order of blocks or the cache's earlier
// content. Precondition: the first sequence has 300 tokens and no past.
void check_every_way(const Shape &shape, uint64_t seed);

template <class T>
bool same_bits(const std::vector<T> &a, const std::vector<T> &b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace runnel::tests
