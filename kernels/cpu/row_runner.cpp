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

// (`out` may be one of the slices.)
void RowRunner::add_slices(const Slices &in, const Mix &step, float *out) noexcept {
    for (int64_t k = 0; k < step.width; ++k) {
        float sum = in.first[0][k];
        for (int64_t i = 1; i < in.count; ++i) sum += in.first[static_cast<size_t>(i)][k];
        out[k] = step.scale * sum;
    }
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
            if (weights == nullptr && outputs == 1) {
                add_slices(in, step, out);
                continue;
            }
            s_.kernels->scale(weights ? weights[0] : 1, in.first[0], step.width, out);
            for (int64_t i = 1; i < in.count; ++i)
                s_.kernels->add_scaled(weights ? weights[i] : 1, in.first[static_cast<size_t>(i)], step.width,
                                       out);
            if (step.scale != 1) s_.kernels->scale(step.scale, out, step.width, out);
        }
    });
}

// A unit is a token.
void RowRunner::run(const StreamWeights &step, int32_t rows, int thread) noexcept {
    constexpr size_t kMost = StreamWeights::kMostStreams;
    const auto streams = static_cast<size_t>(width(step.read)), all = static_cast<size_t>(width(step.in));
    const float *scales = vector_of(step.scales), *bias = vector_of(step.bias);
    s_.pool->for_ranges(thread, rows, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            const float *in = row(step.in, t);
            std::array<float, kMost *(kMost + 2)> x;
            for (size_t i = 0; i < all; ++i)
                x[i] = in[i] * scales[std::min<size_t>(i / streams, 2)] + bias[i];
            const auto gated = static_cast<int64_t>(std::min(all, 2 * streams));
            s_.kernels->gate(Activation::Kind::Sigmoid, {}, x.data(), nullptr, gated, x.data());
            for (size_t i = 0; i < streams; ++i) row(step.read, t)[i] = x[i] + step.eps;
            if (step.mix != kNoSlot) mix_weights(step, x.data() + streams, streams, row(step.mix, t));
        }
    });
}

// x: the sigmoids of the streams' writes, then the matrix. Sums are in ascending order.
void RowRunner::mix_weights(const StreamWeights &step, const float *x, size_t streams, float *out) noexcept {
    constexpr size_t kMost = StreamWeights::kMostStreams;
    std::array<float, kMost * kMost> c;
    for (size_t i = 0; i < streams; ++i) {
        const float *from = x + streams + i * streams;
        float *to = c.data() + i * streams, sum = 0;
        const float largest = *std::max_element(from, from + streams);
        for (size_t j = 0; j < streams; ++j) to[j] = from[j] - largest;
        s_.kernels->exp(to, static_cast<int64_t>(streams), to);
        for (size_t j = 0; j < streams; ++j) sum += to[j];
        for (size_t j = 0; j < streams; ++j) to[j] = to[j] / sum + step.eps;
    }
    // Lines of the matrix begin at 0, next, 2 * next, ...; the elements of a line are `apart` apart.
    const auto divide = [&](size_t apart, size_t next) {
        for (size_t line = 0; line < streams; ++line) {
            float sum = 0;
            for (size_t i = 0; i < streams; ++i) sum += c[line * next + i * apart];
            for (size_t i = 0; i < streams; ++i) c[line * next + i * apart] /= sum + step.eps;
        }
    };
    divide(streams, 1);
    for (int32_t i = 1; i < step.iterations; ++i) divide(1, streams), divide(streams, 1);
    for (size_t j = 0; j < streams; ++j) {
        for (size_t i = 0; i < streams; ++i) *out++ = c[i * streams + j];
        *out++ = 2 * x[j];
    }
}

// A unit is a head of one token.
void RowRunner::run(const JoinAttention &step, int32_t rows, int thread) noexcept {
    const int64_t size = width(step.out) / step.heads;
    const auto count = static_cast<int64_t>(step.parts.size());
    s_.pool->for_ranges(thread, int64_t{rows} * step.heads, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) {
            const int64_t token = unit / step.heads, head = unit % step.heads;
            const auto sums = [&](size_t i) { return row(step.parts[i].sums, token) + 2 * head; };
            std::array<float, JoinAttention::kMost> w;
            float largest = sums(0)[0], total = 0;
            for (size_t i = 1; i < step.parts.size(); ++i) largest = std::max(largest, sums(i)[0]);
            for (size_t i = 0; i < step.parts.size(); ++i) w[i] = sums(i)[0] - largest;
            s_.kernels->exp(w.data(), count, w.data());
            for (size_t i = 0; i < step.parts.size(); ++i) total += w[i] *= sums(i)[1];
            float *out = row(step.out, token) + head * size;
            for (size_t i = 0; i < step.parts.size(); ++i) {
                const float *in = row(step.parts[i].in, token) + head * size;
                if (i == 0)
                    s_.kernels->scale(w[i] / total, in, size, out);
                else
                    s_.kernels->add_scaled(w[i] / total, in, size, out);
            }
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
