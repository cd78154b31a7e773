#include "kernels/cpu/row_runner.h"

#include <algorithm>
#include <cassert>

#include "kernels/cpu/attention.h"

namespace runnel::kernels::cpu {

void RowRunner::run(const Copy &step, int32_t rows, int thread) noexcept {
    s_.pool->for_ranges(thread, rows, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t)
            for (int32_t i = 0; i < step.count; ++i)
                std::copy_n(row(step.in, t) + step.from.first + i * step.from.stride, step.width,
                            row(step.out, t) + step.to.first + i * step.to.stride);
    });
}

// A unit is a block of one token.
void RowRunner::run(const Rotate &step, int32_t rows, int thread) noexcept {
    const int64_t block = step.block, blocks = width(step.in) / block;
    const float *signs = vector_of(step.signs);
    s_.pool->for_ranges(thread, rows * blocks, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const int64_t token = unit / blocks, at = unit % blocks * block;
            const float *in = row(step.in, token) + at, *own = signs ? signs + at : nullptr;
            float *out = row(step.out, token) + at;
            for (int64_t i = 0; i < block; ++i) out[i] = own && !step.signs_last ? in[i] * own[i] : in[i];
            rotate_heads(out, 1, step.block);
            for (int64_t i = 0; own && step.signs_last && i < block; ++i) out[i] *= own[i];
        }
    });
}

RowRunner::Slices RowRunner::slices(const std::vector<Slot> &slots, int64_t slice,
                                    int32_t token) const noexcept {
    Slices all;
    for (const Slot slot : slots)
        for (int64_t at = 0; at < width(slot); at += slice) {
            assert(all.count < Mix::kMostSlices);
            all.first[static_cast<size_t>(all.count++)] = row(slot, token) + at;
        }
    return all;
}

// A unit is a slice of the output of one token. The products are added in the order of the inputs.
void RowRunner::run(const Mix &step, int32_t rows, int thread) noexcept {
    const int64_t outputs = slices(step.out, step.width, 0).count;
    s_.pool->for_ranges(thread, rows * outputs, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const auto token = static_cast<int32_t>(unit / outputs);
            const Slices in = slices(step.in, step.width, token);
            const int64_t j = unit % outputs;
            float *out = slices(step.out, step.width, token).first[static_cast<size_t>(j)];
            const float *weights =
                step.coefficients == kNoSlot ? nullptr : row(step.coefficients, token) + j * in.count;
            s_.kernels->scale(weights ? weights[0] : 1, in.first[0], step.width, out);
            for (int64_t i = 1; i < in.count; ++i)
                s_.kernels->add_scaled(weights ? weights[i] : 1, in.first[static_cast<size_t>(i)], step.width,
                                       out);
            if (step.scale != 1) s_.kernels->scale(step.scale, out, step.width, out);
        }
    });
}

// A unit is a block of columns of one token.
void RowRunner::run(const Lerp &step, int32_t rows, int thread) noexcept {
    constexpr int64_t kBlock = 256;
    const int64_t cols = width(step.in()), blocks = (cols + kBlock - 1) / kBlock;
    const float *weight = vector_of(step.weight);
    s_.pool->for_ranges(thread, rows * blocks, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const int64_t token = unit / blocks, at = unit % blocks * kBlock,
                          count = std::min(kBlock, cols - at);
            const auto block = [&](Slot slot) { return slot == kNoSlot ? nullptr : row(slot, token) + at; };
            const float *of_token = block(step.coefficients), *of_all = weight ? weight + at : nullptr;
            for (const Slot out : step.out) {
                s_.kernels->lerp(block(step.from), block(step.to), of_all ? of_all : of_token,
                                 of_all ? of_token : nullptr, count, block(out));
                if (of_all) of_all += cols;
                if (of_token) of_token += cols;
            }
        }
    });
}

}  // namespace runnel::kernels::cpu
