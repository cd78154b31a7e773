#include "engine/measure/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <span>
#include <stdexcept>
#include <tuple>

#include "engine/measure/pass_cost.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/system_memory.h"
#include "kernels/cpu/unfused_attention.h"
#include "kernels/steps.h"

namespace runnel::measure {
namespace {

using namespace kernels::cpu;
using base::Clock, base::seconds_since;
using kernels::Attention, kernels::BlockId, kernels::cache_row_bytes, kernels::kBlockTokens;

// Seconds of the repetitions of one depth, and the most repetitions of short passes.
constexpr double kLeastSeconds = 0.1, kMostSeconds = 2;
constexpr int kMostTurns = 50;
constexpr size_t kMostCopies = size_t{256} << 20;  // bytes of K and V of all layers together
constexpr int32_t kDefaultWindow = 512, kChunkRange = 4;

Attention windowed(int32_t window) {
    Attention attention{};
    attention.window = window;
    return attention;
}

int64_t padded_cells(int64_t cells) {
    return (cells + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

void expect_memory(double bytes) {
    const auto available = static_cast<double>(system_memory().available);
    if (available > 0 && bytes > 0.8 * available)
        throw kernels::BackendError(kernels::BackendError::Kind::OutOfMemory,
                                    "the deepest test needs " + std::to_string(int64_t(bytes / 1e6)) +
                                        " MB, more than is free: give smaller depths (-d)");
}

// Random keys and values of several layers in paged memory, and the queries of a pass.
class Layers {
  public:
    Layers(const AttentionShape &shape, int64_t cells, int32_t tokens, int32_t layers, Pool &pool)
        : shape_(shape), pool_(pool), kernels_(attention_best()) {
        const int64_t deepest = padded_cells(cells) / kBlockTokens;
        page_k_ = kBlockTokens * cache_row_bytes(shape.types.k, shape.head_dim_k);
        page_v_ = shape.latent ? 0 : kBlockTokens * cache_row_bytes(shape.types.v, shape.head_dim_v);
        block_ = static_cast<size_t>(shape.kv_heads) * (page_k_ + page_v_);
        const auto most = static_cast<int64_t>(kMostCopies / block_);
        blocks_ = std::clamp<int64_t>(layers * deepest, deepest, std::max(deepest, most));
        layers_ = layers;
        expect_memory(static_cast<double>(blocks_) * static_cast<double>(block_));
        memory_ = LazyBuffer(static_cast<size_t>(blocks_) * block_, "keys and values");
        table_.resize(static_cast<size_t>(blocks_));
        for (size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<BlockId>(i);
        std::mt19937 random(1);
        std::shuffle(table_.begin(), table_.end(), random);
        const auto fill = [&](std::vector<float> &values, int64_t count) {
            for (values.resize(static_cast<size_t>(count)); float &x : values)
                x = static_cast<float>(random() % 4001) / 1000 - 2;
        };
        const int64_t longest = kBlockTokens * std::max(shape.head_dim_k, shape.head_dim_v);
        fill(values_, std::max(int64_t{1} << 18, 4 * longest));
        fill(q_, int64_t{tokens} * shape.heads * shape.head_dim_k);
        out_.resize(static_cast<size_t>(int64_t{tokens} * shape.heads * shape.head_dim_v));
        fill_pages();
        const int32_t group = shape.heads / shape.kv_heads;
        const size_t scratch = attention_scratch(shape.head_dim_k, shape.head_dim_v,
                                                 group * std::max(kChunkRange, attention_tile_tokens(group)));
        for (int i = 0; i < pool.threads(); ++i) scratch_.emplace_back(4 * scratch, "scratch");
    }

    // Different K/V for a context of this many cells.
    int32_t copies(int64_t cells) const {
        return static_cast<int32_t>(
            std::clamp<int64_t>(blocks_ / (padded_cells(cells) / kBlockTokens), 1, layers_));
    }

    // Attention of layers 0 ... copies - 1, one after the other, as the CPU backend computes it (attention_runner.h).
    void fused(const AttentionPass &pass, int32_t copies) noexcept {
        const auto tokens = static_cast<int32_t>(pass.tokens);
        const AttentionTile rows = tile(pass, 0, 0, 0, tokens);
        const int32_t ranges = range_count(rows);
        const bool by_ranges = tokens <= kChunkRange && pool_.threads() > 1 &&
                               shape_.kv_heads < 4 * pool_.threads() && ranges > 1;
        if (by_ranges)
            partials_.resize(std::max(
                partials_.size(), attention_partial(rows) * static_cast<size_t>(ranges * shape_.kv_heads)));
        pool_.run([&](int thread) noexcept {
            for (int32_t copy = 0; copy < copies; ++copy) {
                if (by_ranges)
                    attend_by_ranges(pass, copy, ranges, thread);
                else
                    for_each_tile(pass, copy, thread, [&](const AttentionTile &part, int64_t) {
                        kernels_.attend(part, scratch(thread));
                    });
                pool_.barrier();
            }
        });
    }

    void unfused(const AttentionPass &pass, int32_t copies) noexcept {
        const int64_t stride = padded_cells(pass.depth + pass.tokens);
        const UnfusedKernels &kernels = unfused_best();
        float *const matrix = matrix_.as<float>();
        pool_.run([&](int thread) noexcept {
            for (int32_t copy = 0; copy < copies; ++copy) {
                for_each_tile(pass, copy, thread, [&](const AttentionTile &part, int64_t first_row) {
                    kernels.scores(part, matrix + first_row * stride, stride, scratch(thread));
                });
                pool_.barrier();
                for_each_tile(pass, copy, thread, [&](const AttentionTile &part, int64_t first_row) {
                    kernels.softmax(part, matrix + first_row * stride, stride);
                });
                pool_.barrier();
                for_each_tile(pass, copy, thread, [&](const AttentionTile &part, int64_t first_row) {
                    kernels.values(part, matrix + first_row * stride, stride, scratch(thread));
                });
                pool_.barrier();
            }
        });
    }

    void reserve_matrix(const AttentionPass &pass) {
        const auto cells = static_cast<size_t>(padded_cells(pass.depth + pass.tokens));
        const size_t bytes = 4 * cells * static_cast<size_t>(pass.tokens * shape_.heads);
        if (bytes <= matrix_.size()) return;
        expect_memory(static_cast<double>(bytes));
        matrix_ = LazyBuffer();
        matrix_ = LazyBuffer(bytes, "the scores");
    }

    std::span<const float> results(const AttentionPass &pass) const {
        return std::span(out_).first(static_cast<size_t>(pass.tokens * shape_.heads * shape_.head_dim_v));
    }

  private:
    // Fills all pages with values from a list that is long enough to differ from page to page.
    void fill_pages() noexcept {
        pool_.run([&](int thread) noexcept {
            pool_.for_each(thread, blocks_, [&](int64_t block) {
                for (int32_t head = 0; head < shape_.kv_heads; ++head) {
                    const BlockId id = static_cast<BlockId>(block);
                    const size_t longest =
                        static_cast<size_t>(kBlockTokens * std::max(shape_.head_dim_k, shape_.head_dim_v));
                    const size_t room = values_.size() - 2 * longest;
                    const size_t at =
                        (static_cast<size_t>(block) * 7919 + static_cast<size_t>(head) * 104729) % room;
                    const float *k = values_.data() + at, *v = k + longest;
                    kernels_.append(pages(head, &id), 0, kBlockTokens, k, shape_.head_dim_k,
                                    shape_.latent ? nullptr : v, shape_.head_dim_v);
                }
            });
        });
    }

    KvPages pages(int32_t head, const BlockId *table) const {
        std::byte *const base = memory_.data() + static_cast<size_t>(head) * page_k_;
        std::byte *const values = memory_.data() + static_cast<size_t>(shape_.kv_heads) * page_k_ +
                                  static_cast<size_t>(head) * page_v_;
        return {.k = base,
                .v = shape_.latent ? nullptr : values,
                .k_stride = block_,
                .v_stride = block_,
                .table = table,
                .head_dim_k = shape_.head_dim_k,
                .head_dim_v = shape_.head_dim_v,
                .k_type = shape_.types.k,
                .v_type = shape_.types.v};
    }

    AttentionTile tile(const AttentionPass &pass, int32_t copy, int32_t kv_head, int32_t first,
                       int32_t tokens) const noexcept {
        const int32_t group = shape_.heads / shape_.kv_heads;
        const int64_t q_row = int64_t{shape_.heads} * shape_.head_dim_k,
                      out_row = int64_t{shape_.heads} * shape_.head_dim_v;
        const int64_t blocks = padded_cells(pass.depth + pass.tokens) / kBlockTokens;
        AttentionTile rows{};
        rows.pages = pages(kv_head, table_.data() + copy * blocks);
        rows.q = q_.data() + first * q_row + int64_t{kv_head} * group * shape_.head_dim_k;
        rows.out =
            const_cast<float *>(out_.data()) + first * out_row + int64_t{kv_head} * group * shape_.head_dim_v;
        rows.q_stride = q_row, rows.out_stride = out_row;
        rows.tokens = tokens, rows.heads = group;
        rows.first_cell = static_cast<int32_t>(pass.depth) + first;
        rows.window = pass.window;
        rows.scale = shape_.scale;
        return rows;
    }

    // Calls f(tile, its first row of the score matrix) for the tiles of this thread.
    template <typename F>
    void for_each_tile(const AttentionPass &pass, int32_t copy, int thread, F f) noexcept {
        const int32_t group = shape_.heads / shape_.kv_heads, step = attention_tile_tokens(group),
                      tokens = static_cast<int32_t>(pass.tokens);
        const int64_t tiles = (tokens + step - 1) / step;
        pool_.for_each(thread, tiles * shape_.kv_heads, [&](int64_t unit) {
            const auto kv_head = static_cast<int32_t>(unit % shape_.kv_heads);
            const auto first = static_cast<int32_t>(tiles - 1 - unit / shape_.kv_heads) * step;
            f(tile(pass, copy, kv_head, first, std::min(step, tokens - first)),
              (int64_t{kv_head} * tokens + first) * group);
        });
    }

    void attend_by_ranges(const AttentionPass &pass, int32_t copy, int32_t ranges, int thread) noexcept {
        const auto tokens = static_cast<int32_t>(pass.tokens);
        const auto rows = [&](int64_t head) {
            return tile(pass, copy, static_cast<int32_t>(head), 0, tokens);
        };
        const size_t size = attention_partial(rows(0));
        const auto partial = [&](int64_t unit) {
            return partials_.data() + size * static_cast<size_t>(unit);
        };
        pool_.for_each(thread, int64_t{shape_.kv_heads} * ranges, [&](int64_t unit) {
            kernels_.attend_range(rows(unit / ranges), static_cast<int32_t>(unit % ranges), partial(unit),
                                  scratch(thread));
        });
        pool_.barrier();
        pool_.for_each(thread, shape_.kv_heads,
                       [&](int64_t head) { kernels_.join(rows(head), partial(head * ranges), ranges); });
    }

    float *scratch(int thread) const { return scratch_[static_cast<size_t>(thread)].as<float>(); }

    const AttentionShape shape_;
    Pool &pool_;
    const AttentionKernels &kernels_;
    size_t page_k_ = 0, page_v_ = 0, block_ = 0;
    int64_t blocks_ = 0, layers_ = 1;
    LazyBuffer memory_, matrix_;
    std::vector<BlockId> table_;
    std::vector<float> values_, q_, out_, partials_;
    std::vector<LazyBuffer> scratch_;
};

void compute(Layers &layers, const AttentionPass &pass, int32_t copies) {
    pass.fused ? layers.fused(pass, copies) : layers.unfused(pass, copies);
}

// Seconds of one layer. A prefill pass computes one, because it takes longer than fetching its keys and values.
double timed(Layers &layers, const AttentionPass &pass) {
    const int32_t copies = pass.tokens > 1 ? 1 : layers.copies(pass.depth + pass.tokens);
    // A score matrix evicts keys and values from the CPU's caches: a short pass finds its own there again.
    if (pass.tokens == 1) compute(layers, pass, copies);
    const auto start = Clock::now();
    compute(layers, pass, copies);
    return seconds_since(start) / copies;
}

// Times the passes in turns, so that other programs slow down all of them alike.
void take_turns(Layers &layers, std::span<AttentionTime> passes, int repetitions,
                const decode::StopRequest &stop) {
    const auto begin = Clock::now();
    for (int turn = 0; turn < kMostTurns; ++turn) {
        const double spent = seconds_since(begin);
        if (turn > 0 && (spent > kMostSeconds || (turn >= repetitions && spent > kLeastSeconds))) break;
        for (AttentionTime &one : passes) {
            if (stop.requested()) throw base::Interrupted{};
            const double seconds = timed(layers, one.pass);
            one.seconds = turn == 0 ? seconds : std::min(one.seconds, seconds);
        }
    }
}

double difference(Layers &layers, AttentionPass pass) {
    pass.fused = true;
    layers.fused(pass, 1);
    const std::vector<float> fused(layers.results(pass).begin(), layers.results(pass).end());
    pass.fused = false;
    layers.unfused(pass, 1);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < fused.size(); ++i) {
        largest = std::max(largest, std::fabs(double(fused[i])));
        const double off = std::fabs(double(fused[i]) - double(layers.results(pass)[i]));
        worst = std::isnan(off) ? INFINITY : std::max(worst, off);
    }
    return largest > 0 ? worst / largest : worst;
}

}  // namespace

double AttentionPass::scores() const {
    double pairs = 0;
    for (int64_t i = 0; i < tokens; ++i)
        pairs += static_cast<double>(visible_cells(windowed(window), depth + i));
    return pairs * shape.heads;
}

double AttentionPass::operations() const {
    return 2 * scores() * (shape.head_dim_k + shape.head_dim_v);
}

double AttentionPass::cache_bytes() const {
    const size_t k = cache_row_bytes(shape.types.k, shape.head_dim_k),
                 v = shape.latent ? 0 : cache_row_bytes(shape.types.v, shape.head_dim_v);
    return static_cast<double>(cells_in_sight(windowed(window), depth, tokens)) * shape.kv_heads *
           static_cast<double>(k + v);
}

double AttentionPass::row_bytes() const {
    return 4.0 * static_cast<double>(tokens) * shape.heads * (shape.head_dim_k + shape.head_dim_v);
}

double AttentionPass::matrix_bytes() const {
    return fused ? 0 : 4 * sizeof(float) * scores();
}

const AttentionTime *AttentionCosts::find(int64_t depth, int64_t tokens, int32_t kv_heads,
                                          int32_t windowed_to, bool fused) const {
    const auto found = std::ranges::find_if(times, [&](const AttentionTime &one) {
        return one.pass.depth == depth && one.pass.tokens == tokens && one.pass.shape.kv_heads == kv_heads &&
               one.pass.window == windowed_to && one.pass.fused == fused;
    });
    return found == times.end() ? nullptr : &*found;
}

std::vector<NamedShape> compared_shapes(const AttentionShape &own) {
    if (own.latent) return {{"latent", own}};
    const auto with = [&](const char *name, int32_t kv_heads) {
        NamedShape named{name, own};
        named.shape.kv_heads = kv_heads;
        return named;
    };
    int32_t group = own.kv_heads;
    if (group == 1 || group == own.heads)  // the largest divisor of the heads up to a fourth of them
        for (group = std::max(1, own.heads / 4); own.heads % group != 0;) --group;
    std::vector<NamedShape> all = {with("MHA", own.heads)};
    if (group > 1 && group < own.heads) all.push_back(with("GQA", group));
    if (own.heads > 1) all.push_back(with("MQA", 1));
    return all;
}

AttentionCosts measure_attention(const kernels::Program &program, const AttentionCostOptions &options,
                                 const decode::StopRequest &stop) {
    AttentionCosts costs;
    // The most frequent shape, and the smallest window of the model.
    std::map<std::tuple<int32_t, int32_t, int32_t, int32_t, bool>, int32_t> shapes;
    std::tuple<int32_t, int32_t, int32_t, int32_t, bool> common{};
    kernels::for_each_step<Attention>(program, [&](const Attention &a) {
        if (!a.attends()) return;
        ++costs.layers;
        const bool latent = program.cache_layers[static_cast<size_t>(a.cache)].head_dim_v == 0;
        const std::tuple shape{a.heads, a.kv_heads, a.head_dim_k, a.head_dim_v, latent};
        if (++shapes[shape] > shapes[common]) {
            common = shape;
            costs.shape = {a.heads, a.kv_heads, a.head_dim_k, a.head_dim_v, latent, a.scale, options.types};
        }
        if (a.window > 0 && (costs.window == 0 || a.window < costs.window)) costs.window = a.window;
    });
    if (costs.layers == 0) throw std::invalid_argument("no layer of the model has attention");
    costs.own_window = costs.window > 0;
    if (options.window > 0) costs.window = options.window, costs.own_window = false;
    if (costs.window == 0) costs.window = kDefaultWindow;
    costs.chunk = options.chunk;

    Pool pool(options.threads);
    const int64_t deepest = options.depths.back() + options.chunk;
    for (const NamedShape &named : compared_shapes(costs.shape)) {
        const bool own = named.shape.kv_heads == costs.shape.kv_heads;
        if (options.show) options.show(named.name + ": random keys and values");
        Layers layers(named.shape, deepest, options.chunk, costs.layers, pool);
        for (const int64_t depth : options.depths) {
            if (options.show) options.show(named.name + ", depth " + std::to_string(depth));
            std::vector<AttentionTime> passes;
            const auto add = [&](int64_t tokens, int32_t window, bool fused) {
                const AttentionPass pass{named.shape, depth, tokens, window, fused};
                if (!fused) {
                    layers.reserve_matrix(pass);
                    costs.largest_difference = std::max(costs.largest_difference, difference(layers, pass));
                }
                passes.push_back({pass, named.name, own});
            };
            add(1, 0, true);
            for (const int64_t tokens : {int64_t{1}, int64_t{options.chunk}}) {
                if (!own) break;
                if (tokens > 1) add(tokens, 0, true);
                add(tokens, costs.window, true);
                add(tokens, 0, false);
            }
            take_turns(layers, passes, options.repetitions, stop);
            costs.times.insert(costs.times.end(), passes.begin(), passes.end());
        }
    }
    return costs;
}

}  // namespace runnel::measure
