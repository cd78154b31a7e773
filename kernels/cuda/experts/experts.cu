// The router, routing, grouping of rows and the final sum; see experts.h. They move few bytes, and starting a launch costs more
// than its work: so the last block to finish one piece of work often does the next.
// Every block of group_rows recomputes the histogram instead of using one more launch: 4 bytes per pair and
// expert from L2, 8 MB for 2048 tokens of 128 experts.
#include "kernels/cuda/experts/experts.h"

#include "kernels/cuda/experts/router_row.h"
#include "kernels/cuda/linear/linear_prefill.h"
#include "kernels/cuda/linear/quantize_row.h"
#include "kernels/cuda/runtime/arrival.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/cuda/runtime/math.h"
#include "kernels/cuda/runtime/softplus.h"

namespace runnel::kernels::cuda {

namespace {

constexpr float kOut = -__builtin_inff(), kLowest = -3.402823466e38f;
constexpr float kSmallestSum = 0x1p-14f;  // a smaller sum of weights is replaced by this
constexpr float kNear = 0.02f;            // Routing::kNear

// --- route -------------------------------------------------------------------------------------------------

struct RouteShared {
    struct Warp {
        float p[kMaxExperts], s[kMaxExperts], totals[kMaxExpertGroups], weights[kMaxUsedExperts];
    } warp[kRouteTokens];
};
static_assert(sizeof(RouteShared) == kRouteShared);

DEVICE float taking_part(float score) {
    return score >= kLowest ? score : kLowest;  // NaN and minus infinity become the lowest
}

// An element of a list sorted by value, largest first, then by index.
struct Ranked {
    float value;
    int32_t index;

    DEVICE bool before(const Ranked &other) const {
        return value > other.value || (value == other.value && index < other.index);
    }
};
constexpr Ranked kFirst = {__builtin_inff(), -1};  // precedes every element of a list

// The first of s[from], s[from + step], ... after `last` in that order; {kOut, size} if there is none.
DEVICE Ranked next_of(const float *s, int32_t from, int32_t size, int32_t step, const Ranked &last) {
    Ranked best = {kOut, size};
    for (int32_t i = from; i < size; i += step) {
        const Ranked candidate = {s[i], i};
        if (last.before(candidate) && candidate.before(best)) best = candidate;
    }
    return best;
}

// Warp collective: the last of the first `count` elements of s[0 .. size) in that order. A lane keeps the first of its
// elements that have not been taken, and only the lane whose element is taken looks for another.
DEVICE Ranked last_of_best(const float *s, int32_t size, int32_t count) {
    Ranked last = kFirst, own = next_of(s, lane_index(), size, 32, last);
    for (int32_t i = 0; i < count; ++i) {
        Ranked best = own;
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) {
            const Ranked other = {shfl_xor(best.value, mask), shfl_xor(best.index, mask)};
            if (other.before(best)) best = other;
        }
        last = best;
        if (own.index == last.index) own = next_of(s, lane_index(), size, 32, last);
    }
    return last;
}

struct Route {
    using Params = RouteParams;
    static constexpr const char *kName = "route";
    static constexpr int kThreads = 32 * kRouteTokens, kBlocks = 4;

    // Computes the probabilities p and the scores s by which experts are chosen. (A lane reads only what it wrote.)
    static DEVICE void score(const Params &p, const float *logits, float *probability, float *s) {
        const int lane = lane_index();
        constexpr int32_t kAtOnce = 4;  // logits of a lane, whose loads do not wait for each other
#pragma unroll 1
        for (int32_t first = lane; first < p.experts; first += 32 * kAtOnce) {
            float l[kAtOnce];
#pragma unroll
            for (int32_t i = 0; i < kAtOnce; ++i)
                l[i] = first + 32 * i < p.experts ? logits[first + 32 * i] : 0.0f;
#pragma unroll
            for (int32_t i = 0; i < kAtOnce; ++i)
                if (first + 32 * i < p.experts) s[first + 32 * i] = l[i];
        }
        float largest = kOut, sum = 0;
        if (p.score == RouteScore::Softmax) {
            for (int32_t i = lane; i < p.experts; i += 32) largest = s[i] > largest ? s[i] : largest;
            largest = warp_max(largest);
            for (int32_t i = lane; i < p.experts; i += 32) {
                probability[i] = exp_p(s[i] - largest);
                sum = sum + probability[i];
            }
            sum = warp_sum(sum);
        }
        const bool by_logit = p.selection_bias == nullptr && p.groups <= 1;
        for (int32_t i = lane; i < p.experts; i += 32) {
            const float l = s[i];
            const float value = p.score == RouteScore::Softmax        ? probability[i] / sum
                                : p.score == RouteScore::Sigmoid      ? 1.0f / (1.0f + exp_p(-l))
                                : p.score == RouteScore::SqrtSoftplus ? sqrt_rn(softplus_p(l))
                                                                      : l;
            probability[i] = value;
            s[i] = taking_part(by_logit ? l : p.selection_bias ? value + p.selection_bias[i] : value);
        }
    }

    // Stores the experts that the step names, and their p as weights.
    static DEVICE void take_given(const Params &p, const float *given, const float *probability,
                                  int32_t *chosen, float *weights) {
        for (int32_t i = lane_index(); i < p.used; i += 32) {
            const auto expert = static_cast<int32_t>(given[i]);
            chosen[i] = expert, weights[i] = probability[expert];
        }
        warp_sync();
    }

    // Excludes the experts of all but the best groups.
    static DEVICE void drop_groups(const Params &p, float *s, float *totals) {
        const int32_t size = p.experts / p.groups;
        for (int32_t g = lane_index(); g < p.groups; g += 32) {
            Ranked last = kFirst;
            float total = 0;
            for (int32_t i = 0; i < p.group_best; ++i) {
                last = next_of(s + g * size, 0, size, 1, last);
                total += last.value;
            }
            totals[g] = taking_part(total);
        }
        warp_sync();
        const Ranked last = last_of_best(totals, p.groups, p.groups_used);
        for (int32_t i = lane_index(); i < p.experts; i += 32)
            if (last.before({totals[i / size], i / size})) s[i] = kOut;
        warp_sync();
    }

    // Stores the chosen experts in ascending order, and their p as weights.
    static DEVICE void choose(const Params &p, const float *probability, const float *s, int32_t *chosen,
                              float *weights) {
        const int lane = lane_index();
        const Ranked last = last_of_best(s, p.experts, p.used);
        int32_t count = 0;
        for (int32_t first = 0; first < p.experts; first += 32) {
            const int32_t i = first + lane;
            const bool taken = i < p.experts && !last.before({s[i < p.experts ? i : 0], i});
            const uint32_t votes = ballot(taken);
            const int32_t at = count + popc(votes & ((1u << lane) - 1));
            if (taken) chosen[at] = i, weights[at] = probability[i];
            count += popc(votes);
        }
        warp_sync();
    }

    // The weight of a chosen expert (RouteScore::SparseMixer).
    static DEVICE float mixer_weight(const Params &p, const float *s, int32_t expert) {
        const Ranked own = {s[expert], expert};
        float sum = 1;
#pragma unroll 1
        for (int32_t i = 0; i < p.experts; ++i) {
            const float size = s[i] < 0 ? -s[i] : s[i], distance = own.value - s[i];
            const bool is_near = distance <= kNear * (size > own.value ? size : own.value);
            if (is_near && own.before({s[i], i})) sum += exp_p(-distance);
        }
        return 1.0f / sum;
    }

    // The final weight of chosen expert number `own`; sums over the chosen experts are in ascending order.
    static DEVICE float final_weight(const Params &p, const float *weights, int32_t own) {
        float w = weights[own], sum = 0;
        if (p.score == RouteScore::SelectedSoftmax) {
            float largest = weights[0];
            for (int32_t i = 1; i < p.used; ++i) largest = weights[i] > largest ? weights[i] : largest;
            for (int32_t i = 0; i < p.used; ++i) sum += exp_p(weights[i] - largest);
            w = exp_p(w - largest) / sum;
            sum = 1;
        } else if (p.normalize) {
            for (int32_t i = 0; i < p.used; ++i) sum += weights[i];
        }
        if (p.normalize) w = w / (sum > kSmallestSum ? sum : kSmallestSum);
        return w * p.scale;
    }

    // Warp collective: all of a token.
    static DEVICE void route_token(const Params &p, int32_t token, RouteShared::Warp &shared) {
        score(p, p.logits + token * p.stride, shared.p, shared.s);
        warp_sync();
        int32_t *const own_chosen = p.chosen + int64_t{token} * p.used;
        if (p.given) {
            take_given(p, p.given + token * p.given_stride, shared.p, own_chosen, shared.weights);
        } else {
            if (p.groups > 1) drop_groups(p, shared.s, shared.totals);
            choose(p, shared.p, shared.s, own_chosen, shared.weights);
        }
        const int32_t own = lane_index();
        if (p.score == RouteScore::SparseMixer) {
            if (own < p.used) shared.weights[own] = mixer_weight(p, shared.s, own_chosen[own]);
            warp_sync();
        }
        if (own < p.used) {
            const int64_t pair = int64_t{token} * p.used + own;
            const float weight = final_weight(p, shared.weights, own);
            p.weights[pair] = p.expert_scales ? weight * p.expert_scales[p.chosen[pair]] : weight;
        }
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<RouteShared>().warp[warp_index()];
        grid_dep_wait();
        grid_dep_trigger();
        const int32_t token = block_index() * kRouteTokens + warp_index();
        if (token < p.tokens) route_token(p, token, shared);
    }
};

// --- group rows --------------------------------------------------------------------------------------------

struct alignas(16) GroupRowsShared {
    uint32_t count[kMaxExperts];
    uint32_t warp[8];
    uint32_t first, few, many;  // counts of the experts before this one
};
static_assert(sizeof(GroupRowsShared) == kGroupRowsShared);

struct GroupRows {
    using Params = GroupRowsParams;
    static constexpr const char *kName = "group_rows";
    static constexpr int kThreads = 256, kBlocks = 4;

    static DEVICE uint32_t groups_for(uint32_t rows, uint32_t size) { return (rows + size - 1) / size; }
    // What the groups of an expert name; -1: it has none.
    static DEVICE int32_t name_of(const Params &p, int32_t expert) {
        return p.places ? p.places[expert] : expert;
    }

    // Warp collective: the sums over the experts before this one.
    static DEVICE void sum_before(const Params &p, uint32_t expert, GroupRowsShared &shared) {
        const auto few_rows = static_cast<uint32_t>(p.few_rows);
        int first = 0, few = 0, many = 0;
        for (uint32_t e = static_cast<uint32_t>(lane_index()); e < expert; e += 32) {
            first += static_cast<int>(shared.count[e]);
            if (name_of(p, static_cast<int32_t>(e)) < 0) continue;
            few += static_cast<int>(groups_for(shared.count[e], few_rows));
            many += static_cast<int>(groups_for(shared.count[e], kPrefillTokens));
        }
        first = warp_sum(first), few = warp_sum(few), many = warp_sum(many);
        if (lane_index() == 0) {
            shared.first = static_cast<uint32_t>(first);
            shared.few = static_cast<uint32_t>(few);
            shared.many = static_cast<uint32_t>(many);
        }
    }

    // The sum of `own` over the threads before this one.
    static DEVICE uint32_t sum_of_earlier(uint32_t own, GroupRowsShared &shared) {
        uint32_t sum = own;  // inclusive, within the warp
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint32_t earlier = shfl(sum, lane_index() - step < 0 ? 0 : lane_index() - step);
            if (lane_index() >= step) sum += earlier;
        }
        if (lane_index() == 31) shared.warp[warp_index()] = sum;
        block_sync();
        for (int w = 0; w < warp_index(); ++w) sum += shared.warp[w];
        return sum - own;
    }

    static DEVICE void write_groups(TokenGroup *to, int32_t name, uint32_t at, uint32_t first, uint32_t rows,
                                    uint32_t size) {
        for (uint32_t i = static_cast<uint32_t>(thread_index()); i < groups_for(rows, size);
             i += static_cast<uint32_t>(block_threads())) {
            const uint32_t left = rows - i * size;
            to[at + i] = {name, static_cast<int32_t>(first + i * size),
                          static_cast<int32_t>(left < size ? left : size)};
        }
    }

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<GroupRowsShared>();
        grid_dep_wait();
        grid_dep_trigger();
        const int32_t expert = block_index(), threads = block_threads();
        for (int32_t e = thread_index(); e < p.experts; e += threads) shared.count[e] = 0;
        block_sync();
        const int32_t each = (p.pairs + threads - 1) / threads;
        const int32_t begin = thread_index() * each < p.pairs ? thread_index() * each : p.pairs;
        const int32_t end = begin + each < p.pairs ? begin + each : p.pairs;
        uint32_t own = 0;
        for (int32_t i = begin; i < end; ++i) {
            atomic_add_u32(&shared.count[p.chosen[i]], 1);
            own += p.chosen[i] == expert;
        }
        block_sync();
        if (warp_index() == 0) sum_before(p, static_cast<uint32_t>(expert), shared);
        uint32_t row = sum_of_earlier(own, shared) + shared.first;
        float scale[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) scale[k] = p.scales[k] ? p.scales[k][expert] : 1.0f;
        for (int32_t i = begin; i < end; ++i) {
            if (p.chosen[i] != expert) continue;
            p.sources[row] = i / p.used;
            const float weight = p.weights ? p.weights[i] : 1.0f;
#pragma unroll
            for (int k = 0; k < 2; ++k) p.row_weights[k][row] = weight * scale[k];
            p.rows[i] = static_cast<int32_t>(row++);
        }
        const int32_t name = name_of(p, expert);
        const auto few_rows = static_cast<uint32_t>(p.few_rows);
        const uint32_t rows = name < 0 ? 0 : shared.count[expert];
        write_groups(p.few, name, shared.few, shared.first, rows, few_rows);
        write_groups(p.many, name, shared.many, shared.first, rows, kPrefillTokens);
        if (expert == p.experts - 1 && thread_index() == 0) {
            *p.few_count = static_cast<int32_t>(shared.few + groups_for(rows, few_rows));
            *p.many_count = static_cast<int32_t>(shared.many + groups_for(rows, kPrefillTokens));
        }
    }
};

// --- route and group rows of few tokens --------------------------------------------------------------------

// By pair (expert), and by row (starts).
struct alignas(16) RouteGroupsShared {
    // While the router is computed, this is other memory: each warp has 32 sums per token at the start of its part, or, if the
    // input of one token is prepared here, all of it is that row, followed by 32 sums per warp.
    RouteShared route;
    QuantizeShared quantize;
    int32_t expert[kRouteGroupsPairs];
    int32_t starts[kRouteGroupsPairs];  // 1: a group begins with this row
    int32_t is_last;
};
static_assert(sizeof(RouteGroupsShared) == kRouteGroupsShared);

// A block computes the logits of 8 experts; the last one then routes with a warp per token, and groups with a thread per pair.
struct RouteGroups {
    using Params = RouteGroupsParams;
    static constexpr const char *kName = "route_groups";
    static constexpr int kThreads = 32 * kRouteTokens, kBlocks = 1;
    static_assert(kThreads == kRouteGroupsPairs && kThreads == 32 * kRouterRows &&
                  kMaxExperts >= 32 * kRouteTokens &&
                  sizeof(RouteShared) >= 4 * (kMostRouterPrepared + 32 * kRouterRows));

    static DEVICE void run(const Params &p) {
        auto &shared = shared_memory<RouteGroupsShared>();
        if (p.router.tiles == nullptr) {
            grid_dep_wait();
            grid_dep_trigger();
            route_and_group(p, shared);
            return;
        }
        const int32_t expert = block_index() * kRouterRows + warp_index(), last = p.route.experts - 1;
        RouterRow row(p.router, expert < last ? expert : last);
        if (block_index() == 0) fetch_norm(p.router.prepare_input);
        grid_dep_wait();
        grid_dep_trigger();
        if (p.router.prepare_input.x != nullptr) {
            auto *const normed = reinterpret_cast<float *>(&shared.route);
            float *const sums = normed + kMostRouterPrepared;
            prepare_input(p.router.prepare_input, normed, shared.quantize);
            row.multiply(p.router, p.route, expert, normed, sums + 32 * warp_index());
        } else {
            row.multiply(p.router, p.route, expert, p.router.x, shared.route.warp[warp_index()].p);
        }
        block_sync();
        if (thread_index() == 0) shared.is_last = is_last_to_arrive(p.router.arrivals, block_count());
        block_sync();
        if (shared.is_last) route_and_group(p, shared);
    }

    // Block collective: normalizes the input of one token into shared memory, and writes the block's share of it.
    static DEVICE void prepare_input(const QuantizeParams &q, float *normed, QuantizeShared &shared) {
        prepare_row(q, 0, shared, q.out.halves != nullptr,
                    [&](int group, const float(&v)[8], HalfScale halves) {
                        const int k = group * kActivationGroup + activation_first(lane_index());
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            if (k + 16 * h < q.width)
                                *reinterpret_cast<float4 *>(normed + k + 16 * h) =
                                    float4{v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
                        if (group % block_count() == block_index()) store_group(q, 0, group, v, halves);
                    });
        block_sync();
    }

    // Block collective.
    static DEVICE void route_and_group(const Params &p, RouteGroupsShared &shared) {
        if (warp_index() < p.route.tokens)
            Route::route_token(p.route, warp_index(), shared.route.warp[warp_index()]);
        block_sync();
        const GroupRowsParams &g = p.groups;
        const int32_t own = thread_index();
        const bool is_pair = own < g.pairs;
        shared.expert[own] = is_pair ? g.chosen[own] : 0;
        block_sync();
        const int32_t expert = shared.expert[own];
        int32_t below = 0, same = 0,
                before = 0;  // pairs of lower experts, of this one, of this one before this pair
        for (int32_t i = 0; is_pair && i < g.pairs; ++i) {
            below += shared.expert[i] < expert;
            same += shared.expert[i] == expert;
            before += shared.expert[i] == expert && i < own;
        }
        const int32_t row = below + before;
        const bool starts = is_pair && before % g.few_rows == 0;
        if (is_pair) shared.starts[row] = starts;
        block_sync();
        if (!is_pair) return;
        int32_t group = 0;  // groups of lower rows
        for (int32_t i = 0; i < row; ++i) group += shared.starts[i];
        g.sources[row] = own / g.used;
        g.rows[own] = row;
        const float weight = g.weights ? g.weights[own] : 1.0f;
#pragma unroll
        for (int k = 0; k < 2; ++k)
            g.row_weights[k][row] = weight * (g.scales[k] ? g.scales[k][expert] : 1.0f);
        const int32_t left = same - before;
        if (starts) g.few[group] = {expert, row, left < g.few_rows ? left : g.few_rows};
        if (row == g.pairs - 1) *g.few_count = group + starts;
    }
};

// --- combine -----------------------------------------------------------------------------------------------

struct alignas(16) CombineShared {
    QuantizeShared quantize;
    int32_t is_last;
};
static_assert(sizeof(CombineShared) == kCombineShared);

struct Combine {
    using Params = CombineParams;
    static constexpr const char *kName = "combine";
    static constexpr int kThreads = kCombineCols, kBlocks = 3;

    // The sum of a column of a token. The loads of several experts do not wait for each other.
    static DEVICE float sum_of(const Params &p, int32_t token, int32_t col) {
        constexpr int32_t kAtOnce = 8;
        const int64_t pairs = int64_t{token} * p.used;
        float sum = p.add ? p.add[token * p.add_stride + col] : 0.0f;
#pragma unroll 1
        for (int32_t first = 0; first < p.used; first += kAtOnce) {
            int64_t pair[kAtOnce];  // behind the last expert: that one again
            int32_t row[kAtOnce];
            float y[kAtOnce], weight[kAtOnce];
#pragma unroll
            for (int32_t i = 0; i < kAtOnce; ++i) {
                pair[i] = pairs + (first + i < p.used ? first + i : p.used - 1);
                row[i] = p.rows[pair[i]];
                weight[i] = p.weights ? p.weights[pair[i]] : 1.0f;
            }
#pragma unroll
            for (int32_t i = 0; i < kAtOnce; ++i) y[i] = p.y[row[i] * p.y_stride + col];
#pragma unroll
            for (int32_t i = 0; i < kAtOnce; ++i)
                if (first + i < p.used) sum = fma_rn(weight[i], y[i], sum);
        }
        return sum;
    }

    // Block collective, after a block has written its part of a row: the block that completes the row quantizes it.
    static DEVICE void prepare(const Params &p, int32_t token, int32_t parts, CombineShared &shared) {
        block_sync();
        if (thread_index() == 0) shared.is_last = is_last_to_arrive(p.arrivals + token, parts);
        block_sync();
        if (shared.is_last) quantize_row(p.prepare, token, shared.quantize);
        block_sync();
    }

    static DEVICE void run(const Params &p) {
        if (block_index() == 0) fetch_norm(p.prepare);
        grid_dep_wait();
        grid_dep_trigger();
        const int32_t parts = divided_up(p.width, kCombineCols);
        for (int32_t unit = block_index(); unit < p.tokens * parts; unit += block_count()) {
            const int32_t token = unit / parts, col = (unit - token * parts) * kCombineCols + thread_index();
            if (col < p.width) p.out[token * p.out_stride + col] = sum_of(p, token, col);
            if (p.prepare.x != nullptr) prepare(p, token, parts, shared_memory<CombineShared>());
        }
    }
};

}  // namespace

Kernel<RouteParams> route_kernel() {
    return kernel_of<Route>();
}
Kernel<GroupRowsParams> group_rows_kernel() {
    return kernel_of<GroupRows>();
}
Kernel<RouteGroupsParams> route_groups_kernel() {
    return kernel_of<RouteGroups>();
}
Kernel<CombineParams> combine_kernel() {
    return kernel_of<Combine>();
}

}  // namespace runnel::kernels::cuda
