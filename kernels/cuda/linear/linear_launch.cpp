#include "kernels/cuda/linear/linear_launch.h"

#include <algorithm>
#include <cassert>

#include "kernels/cuda/linear/linear_prefill.h"
#include "kernels/cuda/linear/staged_layout.h"

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

// The version with its input in shared memory, if there is one of which two blocks fit on a multiprocessor and all rows have
// digits; else the other.
LinearVersion staged_if_it_fits(const Launcher &launcher, TileFormat format, LinearVersion version,
                                const LinearParams &p) {
    version.staged = launcher.switches().staging && can_stage(format, version) && p.x_rows <= kDigitRows;
    if (linear_shared(format, version, p) > launcher.properties().shared_of_two()) version.staged = false;
    return version;
}

void run(Launcher &launcher, TileFormat format, LinearVersion version, int64_t blocks,
         const LinearParams &p) {
    launcher.run(linear_kernel(format, version), blocks, linear_shared(format, version, p), p);
}

// Loads a version; of a staged one, for the largest input that it may get.
void prepare_version(const DeviceProperties &device, TileFormat format, LinearVersion version) {
    prepare(linear_kernel(format, version).handle,
            version.staged ? device.shared_of_two() : linear_shared(format, version, {}));
}

// Whether all rows of the input of experts are at most two thirds of the weights that a block reads, so that each block may
// copy them all, from L2. (Of how many experts the weights are is not known here: at most of so many groups.)
bool is_small_beside_weights(const Launcher &launcher, const LinearParams &p, TileFormat format,
                             int64_t groups, int64_t blocks) {
    constexpr int64_t kBlocksOfMultiprocessor = 2;
    int64_t weights = 0;
    for (int i = 0; i < p.matrices; ++i) weights += groups * tiled_bytes(format, p.matrix[i].rows, p.cols);
    const int64_t running = std::min(blocks, kBlocksOfMultiprocessor * launcher.multiprocessors());
    const int64_t copy = int64_t{p.x_rows} * staged_row_bytes(format, p.cols);
    return 3 * copy <= 2 * weights / std::max<int64_t>(1, running);
}

void launch_slices(Launcher &launcher, const LinearParams &all, TileFormat format) {
    for (int32_t first = 0; first < all.tokens; first += kLinearTokens) {
        LinearParams p = all;
        p.late_trigger = !launcher.switches().trigger;
        p.tokens = std::min(all.tokens - first, kLinearTokens);
        p.x.codes += first * p.x.codes_stride;
        p.x.digits += 2 * first * p.x.codes_stride;
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
        const LinearVersion version = staged_if_it_fits(launcher, format, {p.tokens}, p);
        assert(version.staged || p.prepare_input.x == nullptr);
        run(launcher, format, version, linear_blocks(p), p);
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

void prepare_linear(const DeviceProperties &device, TileFormat format, int32_t max_tokens) {
    for (const int tokens : {4, 8, 16}) prepare_version(device, format, {tokens});
    for (const int tokens : {kSmallGroupTokens, kStagedTokens})
        if (can_stage(format, {tokens})) prepare_version(device, format, {.tokens = tokens, .staged = true});
    if (max_tokens > most_sliced(format)) prepare_prefill(format);
}

void prepare_heads(TileFormat format, int32_t max_tokens) {
    for (const int tokens : {4, kLinearGroupTokens}) prepare_version({}, format, {tokens, true});
    if (max_tokens > kLinearTokens) prepare_prefill(format);
}

void prepare_experts(const DeviceProperties &device, TileFormat format, int32_t max_tokens) {
    prepare_heads(format, max_tokens);
    if (can_stage(format, {kSmallGroupTokens, true}))
        prepare_version(device, format, {kSmallGroupTokens, true, true});
}

void launch_linear(Launcher &launcher, const LinearParams &p, TileFormat format) {
    if (p.tokens <= most_sliced(format)) return launch_slices(launcher, p, format);
    launch_prefill(launcher, p, format);
}

namespace {

LinearVersion version_of(const Launcher &launcher, TileFormat format, int64_t cols, int32_t tokens) {
    LinearParams p = linear_params(cols);
    p.tokens = tokens;
    return staged_if_it_fits(launcher, format, {tokens}, p);
}

}  // namespace

bool stages(const Launcher &launcher, TileFormat format, int64_t cols, int32_t tokens) {
    return version_of(launcher, format, cols, tokens).staged;
}

bool prepares_rows(const Launcher &launcher, TileFormat format, int64_t cols, int32_t tokens) {
    return can_prepare_rows(format, version_of(launcher, format, cols, tokens));
}

void launch_heads(Launcher &launcher, const LinearParams &params, TileFormat format) {
    LinearParams p = params;
    p.late_trigger = !launcher.switches().trigger;
    if (p.tokens > kLinearTokens) return launch_prefill(launcher, p, format);
    run(launcher, format, {std::min(p.tokens, kLinearGroupTokens), true},
        linear_blocks(p, p.heads * slices(p.tokens, kLinearGroupTokens)), p);
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
        p.groups = rows.few, p.group_count = rows.few_count;
        LinearVersion version{std::min(rows.tokens, rows.few_rows), true};
        const int64_t groups = most_groups(rows.few_rows), blocks = linear_blocks(p, groups);
        if (p.x_rows > 0 && is_small_beside_weights(launcher, p, format, groups, blocks))
            version = staged_if_it_fits(launcher, format, version, p);
        run(launcher, format, version, blocks, p);
    } else {
        p.groups = rows.many, p.group_count = rows.many_count;
        launcher.run(linear_prefill_kernel(format),
                     linear_prefill_blocks(p, format, most_groups(kPrefillTokens)),
                     linear_prefill_shared(format), {p, format});
    }
}

}  // namespace runnel::kernels::cuda
