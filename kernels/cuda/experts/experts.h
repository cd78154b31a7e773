// Mixtures of experts on the device: the choice of each token's experts, the rows of all tokens sorted by
// expert for the matrix kernels (LinearParams::groups), and the weighted sum of the experts' outputs.
// kernels/program.h defines them (Routing, Experts).
//
// A *pair* is a token and one of the experts it chose; pair token * used + i is the i-th of its experts,
// which are in ascending order. A *row* is a pair in the order of experts, then tokens.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/runtime/kernel.h"

namespace runnel::kernels::cuda {

inline constexpr int kMaxExperts = 512, kMaxUsedExperts = 32, kMaxExpertGroups = 64;

// Routing::Score
enum class RouteScore : int32_t { Softmax, Sigmoid, SelectedSoftmax, SparseMixer, SqrtSoftplus };

// One warp per token, 8 to a block. For equal logits the choice equals the CPU's: by value, the lower index
// among equals, NaN and minus infinity last. The order of the sums depends only on the number of experts.
struct RouteParams {
    const float *logits;  // [tokens][stride]
    int64_t stride;
    const float *selection_bias;  // [experts] or null
    const float *expert_scales;   // likewise
    int32_t tokens, experts, used;
    int32_t groups, groups_used, group_best;
    RouteScore score;
    bool normalize;
    float scale;
    int32_t *chosen;  // [pair]: expert
    float *weights;   // [pair]
    // Experts::chosen, [tokens][given_stride], or null: the kernel chooses.
    const float *given = nullptr;
    int64_t given_stride = 0;
};
Kernel<RouteParams> route_kernel();
inline constexpr size_t kRouteShared = 8 * (2 * kMaxExperts + kMaxExpertGroups + kMaxUsedExperts) * 4;
inline constexpr int kRouteTokens = 8;  // per block

// Sorts the pairs by expert into rows and forms groups of them. One block per expert.
struct GroupRowsParams {
    const int32_t *chosen;   // [pair]
    const float *weights;    // [pair]; null: 1
    const float *scales[2];  // of gate and of up: [experts], or null: 1
    int32_t pairs, used, experts;
    int32_t *sources;       // [row]: pair / used, the token; with `used` 1, the pair
    float *row_weights[2];  // for gate and for up, [row]: the pair's weight times the expert's scale
    int32_t *rows;          // [pair]
    // The rows of each expert in groups of at most few_rows, and of at most kPrefillTokens.
    TokenGroup *few, *many;
    int32_t *few_count, *many_count;
    int32_t few_rows = kLinearGroupTokens;
    // [experts], or null: the groups name this place in place of the expert; no groups where it is -1 (expert_places.h).
    const int32_t *places = nullptr;
};
Kernel<GroupRowsParams> group_rows_kernel();
inline constexpr size_t kGroupRowsShared = 4 * (kMaxExperts + 8 + 4);

// The router: a matrix in F32 whose outputs are the logits. They are those of linear.h, to the bit. cols: a multiple of 4.
struct RouterMatrix {
    const std::byte *tiles = nullptr;  // null: the logits are there already
    const float *bias = nullptr;       // [experts] or null
    const float *x = nullptr;          // [tokens][x_stride], rows 16-byte aligned
    int64_t x_stride = 0;
    int32_t cols = 0;
    float scale = 1;
    float *logits = nullptr;       // [tokens][stride]: RouteParams::logits
    uint32_t *arrivals = nullptr;  // one, zero before and after a launch
    // prepare_input.x is the input, which no launch has prepared, of one token and up to kMostRouterPrepared columns: every block
    // normalizes it, and together they write prepare_input.out. `x` is not used then. Null x: none.
    QuantizeParams prepare_input = {};
};
inline constexpr int kRouterRows = 8;  // experts of a block, each of which is the work of a warp
inline constexpr int kMostRouterPrepared = 8192;

// Does what route and group_rows do, for up to kRouteTokens tokens and without places. With a router, router_blocks() blocks
// compute the logits, and the last of them to finish chooses and groups; without one, there is a single block. `many` is not
// written: so few tokens do not need it.
struct RouteGroupsParams {
    RouteParams route;
    GroupRowsParams groups;  // chosen, weights and pairs: those of `route`
    RouterMatrix router = {};
};
Kernel<RouteGroupsParams> route_groups_kernel();
inline constexpr int kRouteGroupsPairs = kRouteTokens * kMaxUsedExperts;
inline constexpr size_t kRouteGroupsShared = kRouteShared + kQuantizeShared + 2 * kRouteGroupsPairs * 4 + 16;
constexpr int64_t router_blocks(int64_t experts) {
    return (experts + kRouterRows - 1) / kRouterRows;
}

// out[t] = add[t] (or 0), then out = fma(weight, y[row], out) for its experts in ascending order. Any grid; a block takes
// kCombineCols columns of a token at a time. (With `used` 1 and no weights, it moves the rows to the places of their pairs.)
struct CombineParams {
    const float *y;        // [row][y_stride]
    const int32_t *rows;   // [pair]
    const float *weights;  // [pair]; null: 1
    const float *add;      // [tokens][add_stride] or null; may be out
    float *out;
    int64_t y_stride, add_stride, out_stride;
    int32_t tokens, used, width;
    // prepare.x is `out`: the block that completes a row quantizes it for the next launch. Null x: none.
    QuantizeParams prepare{};
    uint32_t *arrivals = nullptr;  // one per token, zero before and after a launch
};
Kernel<CombineParams> combine_kernel();
inline constexpr int kCombineCols = 256;
inline constexpr size_t kCombineShared = kQuantizeShared + 16;
constexpr int64_t combine_blocks(int64_t tokens, int64_t width) {
    return tokens * ((width + kCombineCols - 1) / kCombineCols);
}

}  // namespace runnel::kernels::cuda
