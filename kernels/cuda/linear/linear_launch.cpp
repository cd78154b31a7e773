#include "kernels/cuda/linear/linear_launch.h"

#include <algorithm>

#include "kernels/cuda/linear/linear_prefill.h"

namespace runnel::kernels::cuda {
namespace {

// Up to this many tokens, slices of kLinearTokens cost less than the prefill kernel, which
// computes prefill_tokens(format) tokens at a time.
int32_t most_sliced(TileFormat format) {
    return is_float(format) ? kLinearTokens : 2 * kLinearTokens;
}
// Rows per expert from which the prefill kernel is faster: it reads weights once per kPrefillTokens rows.
constexpr int32_t kManyRows = 16;

int64_t slices(int32_t tokens, int32_t size) {
    return (int64_t{tokens} + size - 1) / size;
}

void prepare_prefill(TileFormat format) {
    prepare(linear_prefill_kernel(format).handle, linear_prefill_shared(format));
}

void launch_slices(Launcher &launcher, const LinearParams &all, TileFormat format) {
    for (int32_t first = 0; first < all.tokens; first += kLinearTokens) {
        LinearParams p = all;
        p.late_trigger = !launcher.switches().trigger;
        p.tokens = std::min(all.tokens - first, kLinearTokens);
        p.x.codes += first * p.x.codes_stride;
        p.x.scales += first * p.x.scales_stride;
        p.x.sums += first * p.x.sums_stride;
        p.x.sums16 += first * p.x.sums16_stride;
        p.x.halves += first * p.x.halves_stride;
        if (p.x.half_scales != nullptr) p.x.half_scales += first;
        p.x_f32 += first * p.x_stride;
        for (LinearMatrix &m : p.matrix) {
            if (m.out != nullptr) m.out += first * m.out_stride;
            if (m.add != nullptr) m.add += first * m.add_stride;
        }
        launcher.run(linear_kernel(format, p.tokens), linear_blocks(p), linear_shared(format, p.tokens), p);
    }
}

// Tokens per unit of the prefill kernel: the batch in equal parts of at most kPrefillTokens, or parts of half
// of that if the units would occupy at most half of the multiprocessors.
int32_t slice_of(const Launcher &launcher, const LinearParams &p, TileFormat format) {
    if (is_half(format) || is_float(format)) return prefill_tokens(format);
    constexpr int32_t kColumns = 8;
    const int64_t parts = slices(p.tokens, kPrefillTokens);
    if (2 * linear_prefill_blocks(p, format, p.heads * parts) <= launcher.multiprocessors())
        return kPrefillTokens / 2;
    const auto tokens = static_cast<int32_t>(slices(p.tokens, static_cast<int32_t>(parts)));
    return (tokens + kColumns - 1) / kColumns * kColumns;
}

void launch_prefill(Launcher &launcher, const LinearParams &p, TileFormat format) {
    const int32_t slice = slice_of(launcher, p, format);
    launcher.run(linear_prefill_kernel(format),
                 linear_prefill_blocks(p, format, p.heads * slices(p.tokens, slice)),
                 linear_prefill_shared(format), {p, format, slice});
}

}  // namespace

void prepare_linear(TileFormat format, int32_t max_tokens) {
    for (const int tokens : {4, 8, 16})
        prepare(linear_kernel(format, tokens).handle, linear_shared(format, tokens));
    if (max_tokens > most_sliced(format)) prepare_prefill(format);
}

void prepare_experts(TileFormat format, int32_t max_tokens) {
    for (const int tokens : {4, kLinearGroupTokens})
        prepare(linear_groups_kernel(format, tokens).handle, linear_shared(format, tokens));
    if (max_tokens > kLinearTokens) prepare_prefill(format);
}

void launch_linear(Launcher &launcher, const LinearParams &p, TileFormat format) {
    if (p.tokens <= most_sliced(format)) return launch_slices(launcher, p, format);
    launch_prefill(launcher, p, format);
}

void launch_heads(Launcher &launcher, const LinearParams &params, TileFormat format) {
    LinearParams p = params;
    p.late_trigger = !launcher.switches().trigger;
    if (p.tokens > kLinearTokens) return launch_prefill(launcher, p, format);
    const int tokens = std::min(p.tokens, kLinearGroupTokens);
    launcher.run(linear_groups_kernel(format, tokens),
                 linear_blocks(p, p.heads * slices(p.tokens, kLinearGroupTokens)),
                 linear_shared(format, tokens), p);
}

void launch_experts(Launcher &launcher, const LinearParams &params, TileFormat format,
                    const ExpertRows &rows) {
    LinearParams p = params;
    p.late_trigger = !launcher.switches().trigger;
    p.tokens = rows.rows;
    const auto most_groups = [&](int32_t size) {
        return std::min<int64_t>(rows.rows, int64_t{rows.experts} + rows.rows / size);
    };
    if (rows.tokens <= kLinearTokens || rows.rows < kManyRows * rows.experts) {
        const int tokens = std::min(rows.tokens, rows.few_rows);
        p.groups = rows.few, p.group_count = rows.few_count;
        launcher.run(linear_groups_kernel(format, tokens), linear_blocks(p, most_groups(rows.few_rows)),
                     linear_shared(format, tokens), p);
    } else {
        p.groups = rows.many, p.group_count = rows.many_count;
        launcher.run(linear_prefill_kernel(format),
                     linear_prefill_blocks(p, format, most_groups(kPrefillTokens)),
                     linear_prefill_shared(format), {p, format});
    }
}

}  // namespace runnel::kernels::cuda
