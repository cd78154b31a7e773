#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/route.h"

namespace runnel::kernels::cpu {
namespace {

// Unit of work of a matrix: large enough for a steady stream of reads, small enough to balance the threads.
constexpr int64_t kUnitRows = 64;
// With many tokens a unit has more columns, so that the hidden activations are read fewer times, but there
// are at least four units per thread, and a unit is a multiple of the 16 rows of a weight tile.
constexpr int64_t kTileRows = 16, kMaxOutRows = 128, kOutUnitsPerThread = 4;
constexpr int32_t kDecodeTokens = 8;    // up to this many tokens a pass is bound by reading weights
constexpr int64_t kPrepareBlock = 256;  // columns: the unit in which activations are packed

constexpr std::array kFormats = {ActFormat::F32, ActFormat::Q8x32, ActFormat::Q8x256};

int64_t units_of(int64_t rows, int64_t unit) {
    return (rows + unit - 1) / unit;
}

int64_t out_unit(int64_t rows, bool decode, int threads) {
    if (decode) return kUnitRows;
    const int64_t even = rows / (kOutUnitsPerThread * threads) / kTileRows * kTileRows;
    return std::clamp(even, kTileRows, kMaxOutRows);
}

size_t record_bytes(ActFormat format) {
    return packed_bytes(format, 1, 1);
}

const std::byte *matrix_row(const Weight &w, int32_t expert, int64_t row) {
    return w.matrix(expert) + gguf::row_bytes(w.type, w.cols) * static_cast<size_t>(row);
}

// Prefetches the first tile of rows at p, which no earlier product can prefetch.
void prefetch_tile(const std::byte *p, const Weight &w) {
    const size_t bytes = gguf::row_bytes(w.type, w.cols) * static_cast<size_t>(std::min(kTileRows, w.rows));
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

}  // namespace

ExpertRunner::ExpertRunner(const Surroundings &surroundings, int32_t max_tokens) : s_(surroundings) {
    for_each_step<Experts>(*s_.program, [&](const Experts &step) { reserve(step, max_tokens); });
}

// Enlarges the buffers that are too small for this step.
void ExpertRunner::reserve(const Experts &step, int32_t max_tokens) {
    const auto enlarge = [](LazyBuffer &buffer, size_t bytes) {
        if (buffer.size() < bytes) buffer = LazyBuffer(bytes, "activations of experts");
    };
    const int64_t experts = expert_count(*s_.program, step), hidden = expert_width(*s_.program, step);
    const int32_t rows = max_tokens * step.routing.used;
    for (LazyBuffer *buffer : {&chosen_, &weights_, &row_pair_, &row_weight_, &row_group_})
        enlarge(*buffer, static_cast<size_t>(rows) * sizeof(float));
    groups_.reserve(static_cast<size_t>(experts));
    first_.resize(std::max(first_.size(), static_cast<size_t>(experts) + 1));
    route_scratch_.resize(static_cast<size_t>(s_.pool->threads()));
    for (LazyBuffer &buffer : route_scratch_) enlarge(buffer, route_scratch(experts) * sizeof(float));
    for (WeightId id : {step.gate, step.up})
        if (id != kNoWeight && max_tokens > 1) {
            const ActFormat format = act_format(weight(id).type);
            enlarge(gathered_[static_cast<size_t>(format)],
                    packed_bytes(format, weight(step.gate).cols, rows));
        }
    if (step.gate != kNoWeight)
        enlarge(hidden_, static_cast<size_t>(rows) * static_cast<size_t>(2 * hidden) * sizeof(float));
    if (step.down == kNoWeight) return;
    const Weight &down = weight(step.down);
    enlarge(packed_hidden_, packed_bytes(act_format(down.type), down.cols, rows));
    static_assert(kMaxOutRows <= 2 * kPrepareBlock);
    const int64_t tile = std::max(2 * kPrepareBlock * max_tokens, down.rows * kDecodeTokens);
    tiles_.resize(static_cast<size_t>(s_.pool->threads()));
    for (LazyBuffer &buffer : tiles_) enlarge(buffer, static_cast<size_t>(tile) * sizeof(float));
}

void ExpertRunner::run(const Experts &step, Phase phase, int thread, int32_t tokens,
                       const std::byte *after) noexcept {
    switch (phase) {
        case Phase::Route:
            return route(step, thread, tokens);
        case Phase::Gather:
            return gather(step, thread, tokens);
        case Phase::In:
            return multiply_in(step, thread, tokens);
        case Phase::Activate:
            return activate(step, thread, tokens);
        case Phase::Out:
            return multiply_out(step, thread, tokens, after);
    }
}

float *ExpertRunner::slot_row(Slot slot, int64_t token) const noexcept {
    return s_.slots[static_cast<size_t>(slot)].as<float>() +
           token * s_.program->slots[static_cast<size_t>(slot)].width;
}

// --- rows ------------------------------------------------------------------------------------------------

void ExpertRunner::route(const Experts &step, int thread, int32_t tokens) noexcept {
    const auto experts = static_cast<size_t>(expert_count(*s_.program, step));
    const auto route_tokens = [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            const int64_t at = t * step.routing.used;
            cpu::route(step.routing, {slot_row(step.logits, t), experts}, floats(step.routing.selection_bias),
                       *s_.vector, route_scratch_[static_cast<size_t>(thread)].as<float>(),
                       chosen_.as<int32_t>() + at, weights_.as<float>() + at,
                       step.chosen == kNoSlot ? nullptr : slot_row(step.chosen, t));
            if (const float *scales = floats(step.routing.expert_scales))
                for (int64_t i = at; i < at + step.routing.used; ++i)
                    weights_.as<float>()[i] *= scales[chosen_.as<int32_t>()[i]];
        }
    };
    if (tokens == 1) {
        if (thread == 0) route_tokens(0, 1);
    } else {
        s_.pool->for_ranges(thread, tokens, route_tokens);
        s_.pool->barrier();
    }
    if (thread == 0) group_rows(step, tokens);
}

// Sorts the (token, expert) pairs by expert, by counting.
void ExpertRunner::group_rows(const Experts &step, int32_t tokens) noexcept {
    const auto experts = static_cast<size_t>(expert_count(*s_.program, step));
    const int32_t rows = tokens * step.routing.used;
    const int32_t *chosen = chosen_.as<int32_t>();
    std::fill_n(first_.begin(), experts + 1, 0);
    for (int32_t i = 0; i < rows; ++i) ++first_[static_cast<size_t>(chosen[i]) + 1];
    groups_.clear();  // keeps its capacity
    for (size_t e = 0; e < experts; ++e) {
        const int32_t count = first_[e + 1];
        first_[e + 1] += first_[e];
        if (count > 0) groups_.push_back({static_cast<int32_t>(e), first_[e], count});
        for (int32_t row = first_[e]; row < first_[e + 1]; ++row)
            row_group_.as<int32_t>()[row] = static_cast<int32_t>(groups_.size()) - 1;
    }
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t row = first_[static_cast<size_t>(chosen[i])]++;
        row_pair_.as<int32_t>()[row] = i;
        row_weight_.as<float>()[row] = weights_.as<float>()[i];
    }
}

void ExpertRunner::gather(const Experts &step, int thread, int32_t tokens) noexcept {
    const Weight &gate = weight(step.gate);
    if (tokens <= kDecodeTokens) {
        const int64_t first = s_.pool->first_unit(thread, in_units(step), 1);
        prefetch_tile(in_unit(step, first), gate);
    }
    if (tokens == 1) return;
    const int64_t blocks = units_of(gate.cols, kPrepareBlock);
    for (const ActFormat format : kFormats) {
        const bool read = act_format(gate.type) == format ||
                          (step.up != kNoWeight && act_format(weight(step.up).type) == format);
        if (!read) continue;
        const size_t bytes = record_bytes(format);
        const std::byte *packed = s_.packed[static_cast<size_t>(format)].data();
        s_.pool->for_ranges(
            thread, int64_t{tokens} * step.routing.used,
            [&](int64_t row0, int64_t row1) {
                for (int64_t row = row0; row < row1; ++row) {
                    const Group &group = groups_[static_cast<size_t>(row_group_.as<int32_t>()[row])];
                    std::byte *to = gathered_[static_cast<size_t>(format)].data() +
                                    packed_bytes(format, gate.cols, group.first) +
                                    static_cast<size_t>(row - group.first) * bytes;
                    const std::byte *from = packed + static_cast<size_t>(token_of(step, row)) * bytes;
                    for (int64_t b = 0; b < blocks; ++b)
                        std::memcpy(to + static_cast<size_t>(b * group.count) * bytes,
                                    from + static_cast<size_t>(b * tokens) * bytes, bytes);
                }
            },
            1, static_cast<int>(format));
    }
}

const std::byte *ExpertRunner::expert_input(const Experts &step, ActFormat format, const Group &group,
                                            int32_t tokens) const noexcept {
    if (tokens == 1) return s_.packed[static_cast<size_t>(format)].data();
    return gathered_[static_cast<size_t>(format)].data() +
           packed_bytes(format, weight(step.gate).cols, group.first);
}

// --- products --------------------------------------------------------------------------------------------

// With few tokens a thread gets long ranges of units, with many it takes single units until none is left.
// body(begin, end, next): `next` is the unit that this thread computes next, or -1.
template <typename Body>
void ExpertRunner::for_units(int thread, int64_t units, bool decode, Body &&body) noexcept {
    if (decode) return s_.pool->for_ranges_ahead(thread, units, body);
    for (int64_t at = s_.pool->take(0, 1); at < units;) {
        const int64_t next = s_.pool->take(0, 1);
        body(at, at + 1, next < units ? next : -1);
        at = next;
    }
}

int64_t ExpertRunner::in_units(const Experts &step) const noexcept {
    int64_t units = units_of(weight(step.gate).rows, kUnitRows);
    if (step.up != kNoWeight) units += units_of(weight(step.up).rows, kUnitRows);
    return units * static_cast<int64_t>(groups_.size());
}

// The location of a unit: an expert's units are those of its gate, then those of its up matrix.
ExpertRunner::InUnit ExpertRunner::locate(const Experts &step, int64_t unit) const noexcept {
    const int64_t gate_units = units_of(weight(step.gate).rows, kUnitRows);
    const int64_t per_expert = in_units(step) / static_cast<int64_t>(groups_.size());
    const int64_t within = unit % per_expert;
    const bool up = within >= gate_units;
    return {&groups_[static_cast<size_t>(unit / per_expert)], &weight(up ? step.up : step.gate),
            (up ? within - gate_units : within) * kUnitRows, up ? weight(step.gate).rows : 0};
}

const std::byte *ExpertRunner::in_unit(const Experts &step, int64_t unit) const noexcept {
    const InUnit at = locate(step, unit);
    return matrix_row(*at.weight, at.group->expert, at.row);
}

void ExpertRunner::multiply_in(const Experts &step, int thread, int32_t tokens) noexcept {
    if (activates_at_once(step, tokens)) return multiply_and_activate(step, thread, tokens);
    const int64_t stride = 2 * expert_width(*s_.program, step), units = in_units(step);
    const bool decode = tokens <= kDecodeTokens;
    const std::byte *behind = nullptr;
    if (step.down != kNoWeight) {
        const Weight &down = weight(step.down);
        const int64_t out_rows = out_unit(down.rows, decode, s_.pool->threads());
        const int64_t out_first = s_.pool->first_unit(thread, units_of(down.rows, out_rows), 1) * out_rows;
        behind = matrix_row(down, groups_.front().expert, out_first);
    }
    for_units(thread, units, decode, [&](int64_t unit, int64_t end, int64_t next) {
        while (unit < end) {
            const InUnit at = locate(step, unit);
            const Weight &w = *at.weight;
            const int64_t row1 = std::min(w.rows, at.row + (end - unit) * kUnitRows);
            unit += units_of(row1 - at.row, kUnitRows);
            const std::byte *ahead = unit < end  ? in_unit(step, unit)
                                     : next >= 0 ? in_unit(step, next)
                                                 : behind;
            s_.linear->multiply(w.type, matrix_row(w, at.group->expert, 0), w.cols, at.row, row1,
                                expert_input(step, act_format(w.type), *at.group, tokens), at.group->count,
                                hidden_.as<float>() + at.group->first * stride + at.out, stride,
                                scratch(thread), ahead);
        }
    });
}

// Whether In applies the activation to a unit's products, while they are in the cache, instead of Activate. A unit is then a
// block of kPrepareBlock columns, as h is packed, so there must be enough units for all threads.
bool ExpertRunner::activates_at_once(const Experts &step, int32_t tokens) const noexcept {
    if (tokens <= kDecodeTokens || step.up == kNoWeight || step.down == kNoWeight) return false;
    const int64_t blocks = units_of(expert_width(*s_.program, step), kPrepareBlock);
    return static_cast<int64_t>(groups_.size()) * blocks >= kOutUnitsPerThread * s_.pool->threads();
}

void ExpertRunner::multiply_and_activate(const Experts &step, int thread, int32_t tokens) noexcept {
    const int64_t cols = expert_width(*s_.program, step), blocks = units_of(cols, kPrepareBlock);
    float *products = tiles_[static_cast<size_t>(thread)].as<float>();
    const auto group_of = [&](int64_t unit) -> const Group & {
        return groups_[static_cast<size_t>(unit / blocks)];
    };
    const auto first_col = [&](int64_t unit) { return unit % blocks * kPrepareBlock; };
    for_units(
        thread, static_cast<int64_t>(groups_.size()) * blocks, false,
        [&](int64_t unit, int64_t, int64_t next) {
            const Group &group = group_of(unit);
            const int64_t col0 = first_col(unit), col1 = std::min(col0 + kPrepareBlock, cols),
                          n = col1 - col0;
            const auto multiply = [&](WeightId id, float *out, const std::byte *ahead) {
                const Weight &w = weight(id);
                s_.linear->multiply(w.type, matrix_row(w, group.expert, col0), w.cols, 0, n,
                                    expert_input(step, act_format(w.type), group, tokens), group.count, out,
                                    2 * n, scratch(thread), ahead);
            };
            multiply(step.gate, products, matrix_row(weight(step.up), group.expert, col0));
            multiply(
                step.up, products + n,
                next < 0 ? nullptr : matrix_row(weight(step.gate), group_of(next).expert, first_col(next)));
            activate_rows(step, group.first, group.first + group.count, col0, col1, {products, 2 * n, n});
        });
}

void ExpertRunner::activate(const Experts &step, int thread, int32_t tokens) noexcept {
    if (step.gate != kNoWeight && activates_at_once(step, tokens)) return;
    const int64_t rows = groups_.back().first + groups_.back().count, cols = expert_width(*s_.program, step);
    const auto activate_range = [&](int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
        Hidden hidden{};
        if (step.gate != kNoWeight) hidden = {hidden_.as<float>() + row0 * 2 * cols + col0, 2 * cols, cols};
        activate_rows(step, row0, row1, col0, col1, hidden);
    };
    if (rows >= 4 * s_.pool->threads()) {
        s_.pool->for_ranges(thread, rows,
                            [&](int64_t row0, int64_t row1) { activate_range(row0, row1, 0, cols); });
        return;
    }
    const int64_t blocks = units_of(cols, kPrepareBlock), threads = s_.pool->threads();
    const int64_t col0 = blocks * thread / threads * kPrepareBlock,
                  col1 = std::min(blocks * (thread + 1) / threads * kPrepareBlock, cols);
    if (col0 < col1) activate_range(0, rows, col0, col1);
}

void ExpertRunner::activate_rows(const Experts &step, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                                 const Hidden &hidden) noexcept {
    if (step.gate == kNoWeight) {
        for (int64_t row = row0; row < row1; ++row)
            pack_row(step, row, hidden_in(step.in, step, row, 0), col0, col1);
        return;
    }
    const int64_t cols = expert_width(*s_.program, step), n = col1 - col0;
    const bool merged = has_merged_gate(*s_.program, step), gated = merged || step.up != kNoWeight;
    for (int64_t row = row0; row < row1; ++row) {
        const Group &group = groups_[static_cast<size_t>(row_group_.as<int32_t>()[row])];
        float *gate = hidden.gate + (row - row0) * hidden.stride, *up = gate + hidden.up;
        const auto multiply = [&](WeightId scales, float *x) {
            float factor = step.weights_on_input ? row_weight_.as<float>()[row] : 1;
            if (const float *s = floats(scales)) factor *= s[group.expert];
            if (factor != 1) s_.vector->scale(factor, x, n, x);
        };
        multiply(step.gate_scales, gate);
        if (gated) multiply(merged ? step.gate_scales : step.up_scales, up);
        if (const float *bias = bias_of(step.gate_bias, group.expert)) {
            s_.vector->add(gate, bias + col0, n, gate);
            if (merged) s_.vector->add(up, bias + cols + col0, n, up);
        }
        if (const float *bias = bias_of(step.up_bias, group.expert)) s_.vector->add(up, bias + col0, n, up);
        float *h = step.down == kNoWeight ? hidden_in(step.out, step, row, col0) : gate;
        s_.vector->gate(step.act, step.parameters, gate, gated ? up : nullptr, n, h);
        if (step.down != kNoWeight) pack_row(step, row, gate - col0, col0, col1);
    }
}

// Packs values [col0, col1) of h, which belongs to a row.
void ExpertRunner::pack_row(const Experts &step, int64_t row, const float *h, int64_t col0,
                            int64_t col1) noexcept {
    const Weight &down = weight(step.down);
    const ActFormat format = act_format(down.type);
    const Group &group = groups_[static_cast<size_t>(row_group_.as<int32_t>()[row])];
    const int32_t within = static_cast<int32_t>(row) - group.first;
    s_.linear->pack(format, h, 0, down.cols, group.count, within, within + 1, col0, col1,
                    packed_hidden_.data() + packed_bytes(format, down.cols, group.first));
}

void ExpertRunner::multiply_out(const Experts &step, int thread, int32_t tokens,
                                const std::byte *after) noexcept {
    const Weight &down = weight(step.down);
    const bool decode = tokens <= kDecodeTokens;
    const int64_t unit = out_unit(down.rows, decode, s_.pool->threads());
    for_units(thread, units_of(down.rows, unit), decode, [&](int64_t begin, int64_t end, int64_t next) {
        add_columns(step, thread, tokens, begin * unit, std::min(end * unit, down.rows),
                    next >= 0 ? matrix_row(down, groups_.front().expert, std::min(next * unit, down.rows - 1))
                              : after);
    });
}

// Computes output columns [col0, col1), which are rows [col0, col1) of the down matrices.
void ExpertRunner::add_columns(const Experts &step, int thread, int32_t tokens, int64_t col0, int64_t col1,
                               const std::byte *next) noexcept {
    const Weight &down = weight(step.down);
    const ActFormat format = act_format(down.type);
    const int64_t n = col1 - col0;
    for (int32_t t = 0; t < tokens && step.add != step.out; ++t) {
        float *out = slot_row(step.out, t) + col0;
        if (step.add == kNoSlot)
            std::fill_n(out, n, 0.0f);
        else
            std::copy_n(slot_row(step.add, t) + col0, n, out);
    }
    float *tile = tiles_[static_cast<size_t>(thread)].as<float>();
    for (const Group &group : groups_) {
        const bool last = &group == &groups_.back();
        s_.linear->multiply(down.type, matrix_row(down, group.expert, col0), down.cols, 0, n,
                            packed_hidden_.data() + packed_bytes(format, down.cols, group.first), group.count,
                            tile, n, scratch(thread),
                            last ? next : matrix_row(down, (&group + 1)->expert, col0));
        for (int32_t i = 0; i < group.count; ++i) {
            const int32_t row = group.first + i;
            float *y = tile + i * n, *out = slot_row(step.out, token_of(step, row)) + col0;
            if (const float *bias = bias_of(step.down_bias, group.expert))
                s_.vector->add(y, bias + col0, n, y);
            s_.vector->add_scaled(step.weights_on_input ? 1.0f : row_weight_.as<float>()[row], y, n, out);
        }
    }
}

}  // namespace runnel::kernels::cpu
