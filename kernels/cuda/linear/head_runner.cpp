#include "kernels/cuda/linear/head_runner.h"

#include <algorithm>

#include "kernels/cuda/linear/activations.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/runtime/memory_need.h"
#include "kernels/cuda/steps/elementwise.h"

namespace runnel::kernels::cuda {
namespace {

// Whether the matrix kernels can read the slices in place: rows of slots are 16-byte aligned.
bool in_place(const HeadLinear &step, const Weight &weight) {
    return step.from.first % 4 == 0 && (weight.count == 1 || step.from.stride % 4 == 0);
}

// Bytes of the slices of `tokens` tokens, as the matrix kernels read them.
int64_t piece_bytes(const HeadLinear &step, const Weight &weight, int32_t tokens) {
    const int64_t rows = weight.count * tokens;
    const ActivationForms forms = forms_of(tile_format(weight.type));
    if (forms.any()) return activation_bytes(weight.cols, rows, forms);
    return in_place(step, weight) ? 0 : 4 * rows * stride_of(weight.cols);
}

// Calls f(step, weight) for all HeadLinear steps of the plan.
template <class Function>
void for_heads(const Program &program, const Plan &plan, const Function &f) {
    for (const Op &op : plan.ops)
        if (const auto *step = std::get_if<HeadLinear>(&op))
            f(*step, program.weights[static_cast<size_t>(step->weight)]);
}

}  // namespace

size_t HeadRunner::bytes(const Program &program, const Plan &plan, int32_t max_tokens) {
    int64_t most = 0;
    for_heads(program, plan, [&](const HeadLinear &step, const Weight &weight) {
        most = std::max(most, piece_bytes(step, weight, max_tokens));
    });
    return static_cast<size_t>(most);
}

HeadRunner::HeadRunner(const Program &program, const Plan &plan, int32_t max_tokens) {
    if (const size_t pieces = bytes(program, plan, max_tokens); pieces > 0)
        pieces_ = DeviceMemory(pieces, "heads");
    for_heads(program, plan, [&](const HeadLinear &, const Weight &weight) {
        const TileFormat format = tile_format(weight.type);
        prepare_heads(format, max_tokens);
        if (forms_of(format).any())
            prepare(quantize_pieces_kernel().handle, 0);
        else
            prepare(copy_pieces_kernel().handle, 0);
    });
}

void HeadRunner::enqueue(Launcher &launcher, const HeadLinear &step, const Weight &weight,
                         const Operands &operands) {
    const auto heads = static_cast<int32_t>(weight.count), cols = static_cast<int32_t>(weight.cols);
    const int32_t tokens = operands.tokens;
    const float *const in = operands.in.data + step.from.first;
    LinearParams p = linear_params(cols);
    if (step.one_range) p.range_blocks = 1;
    p.tokens = tokens, p.heads = heads;
    p.matrices = 1;
    LinearMatrix &m = p.matrix[0];
    m.tiles = operands.tiles;
    m.rows = static_cast<int32_t>(weight.rows);
    m.out = operands.out.data + step.to.first;
    m.out_stride = operands.out.stride;
    m.out_skip = step.to.stride - tokens * operands.out.stride;
    if (const ActivationForms forms = forms_of(tile_format(weight.type)); forms.any()) {
        p.x = place_activations(pieces_.data(), cols, int64_t{heads} * tokens, forms);
        const QuantizePiecesParams quantize{in, operands.in.stride, step.from.stride, cols, heads, tokens,
                                            p.x};
        launcher.run(quantize_pieces_kernel(), quantize_pieces_blocks(quantize), 0, quantize);
    } else if (in_place(step, weight)) {
        p.x_f32 = in;
        p.x_stride = operands.in.stride;
        p.x_skip = step.from.stride - tokens * operands.in.stride;
    } else {
        p.x_f32 = pieces_.as<float>();
        p.x_stride = stride_of(cols);
        const CopyParams copy{{{in, pieces_.as<float>(), operands.in.stride, p.x_stride, step.from.stride,
                                tokens * p.x_stride, heads, cols}},
                              1,
                              tokens};
        launcher.run(copy_pieces_kernel(), copy_pieces_blocks(copy), 0, copy);
    }
    launch_heads(launcher, p, tile_format(weight.type));
}

}  // namespace runnel::kernels::cuda
