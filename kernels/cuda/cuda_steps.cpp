// One operation of a plan after the other, as launches.
#include <algorithm>

#include "kernels/cuda/gpu_program.h"
#include "kernels/cuda/linear/linear_launch.h"
#include "kernels/cuda/steps/embed.h"
#include "kernels/cuda/steps/normalize.h"
#include "kernels/cuda/steps/rotate.h"
#include "kernels/cuda/steps/streams.h"
#include "kernels/steps.h"

namespace runnel::kernels::cuda {

void CudaBackend::enqueue(const Embed &op) {
    embed(op.table, input_.tokens(), op.scale, op.out, false);
    if (op.positions != kNoWeight) embed(op.positions, input_.positions(), 1, op.out, true);
}

// Copies rows of a table into a slot, or adds them to it.
void CudaBackend::embed(WeightId id, const int32_t *rows, float scale, Slot out, bool add) {
    const Weight &table = weight(id);
    launch_exact(embed_kernel(), tokens_, 0,
                 {weights_.tiles(id), tile_format(table.type), static_cast<int32_t>(table.cols), scale, rows,
                  slot(out), stride(out), static_cast<int32_t>(table.rows - 1), add});
}

void CudaBackend::enqueue(const Norm &op) {
    const bool adds = op.add != kNoSlot;
    const bool own = op.weight != kNoWeight && weight(op.weight).cols == width(op.out);
    launch_exact(normalize_kernel(), int64_t{tokens_} * op.parts, kNormalizeShared,
                 {slot(op.in), weights_.floats(op.weight), weights_.floats(op.bias),
                  adds ? slot(op.add) : nullptr, slot(op.out), stride(op.in), adds ? stride(op.add) : 0,
                  stride(op.out), static_cast<int32_t>(width(op.out) / op.parts), op.parts, own, op.eps,
                  op.kind == Norm::Kind::Layer, op.scale});
}

QuantizeParams CudaBackend::quantize_params(const PrepareOp &op) const {
    const bool normed = op.norm != kNoWeight;
    Activations out = quantized(width(op.slot), op.buffer);
    if (!plan_.prepared.integers) out.codes = nullptr;
    if (!plan_.prepared.halves) out.halves = nullptr;
    return {slot(op.in),
            weights_.floats(op.norm),
            normed ? slot(op.slot) : nullptr,
            op.eps,
            static_cast<int32_t>(width(op.slot)),
            stride(op.slot),
            out};
}

// Whether the launches that read the result of `op` prepare it themselves, each of their blocks all of it: if the launch before
// them did, one block would work, and all others would wait for it. More than kSmallGroupTokens rows would take every block longer
// than a launch of their own takes.
bool CudaBackend::prepared_later(const PrepareOp &op) const {
    if (op.routes) return tokens_ == 1;
    return tokens_ <= kSmallGroupTokens && !op.readers.empty() &&
           std::ranges::all_of(op.readers, [&](TileFormat format) {
               return stages(launcher_, format, width(op.slot), tokens_);
           });
}

void CudaBackend::enqueue(const PrepareOp &op) {
    if (prepared_later(op)) return;
    launch_exact(quantize_kernel(), tokens_, kQuantizeShared, quantize_params(op));
}

LinearParams CudaBackend::matrices_of(const LinearOp &op) const {
    LinearParams params = linear_params(width(op.in));
    params.x = quantized(width(op.in), op.buffer);
    params.x_f32 = slot(op.in);
    params.x_stride = stride(op.in);
    params.gate = op.gate;
    for (const Linear::Part &part : op.parts) {
        LinearMatrix &m = params.matrix[params.matrices++];
        m.tiles = weights_.tiles(part.weight);
        m.bias = weights_.floats(part.bias);
        m.rows = static_cast<int32_t>(weight(part.weight).rows);
        m.scale = part.scale;
        if (part.add != kNoSlot) m.add = slot(part.add), m.add_stride = stride(part.add);
        if (part.out != kNoSlot) m.out = slot(part.out), m.out_stride = stride(part.out);
    }
    params.tokens = tokens_;
    return params;
}

void CudaBackend::enqueue(const LinearOp &op) {
    LinearParams params = matrices_of(op);
    params.ahead = ahead_;
    if (op.prepare_input && prepared_later(*op.prepare_input))
        params.prepare_input = quantize_params(*op.prepare_input);
    bool prepares = op.prepare && tokens_ <= kPreparedTokens && !prepared_later(*op.prepare);
    if (prepares) {
        params.prepare = quantize_params(*op.prepare);
        params.arrivals = arrivals_.as<uint32_t>();
        // A row that is quantized as a whole is the work of one thread block. For more than one such row, a separate
        // launch is faster.
        prepares =
            !needs_whole_rows(params.prepare) || prepares_rows(launcher_, op.format, width(op.in), tokens_);
        if (!prepares) params.prepare = {};
    }
    launch_linear(launcher_, params, op.format);
    if (op.prepare && !prepares) enqueue(*op.prepare);
}

void CudaBackend::enqueue(const ExpertsOp &op) {
    const auto memory = [&](Slot at) {
        return at == kNoSlot ? SlotMemory{} : SlotMemory{slot(at), stride(at)};
    };
    const Experts &step = op.step;
    experts_.enqueue(
        launcher_, op, weights_,
        {memory(step.in), memory(step.logits), memory(step.add), memory(step.out), memory(step.chosen),
         op.in.empty() ? Activations{} : quantized(op.in_width, op.buffer),
         op.router ? matrices_of(*op.router) : LinearParams{},
         op.prepare && !prepared_later(*op.prepare) ? quantize_params(*op.prepare) : QuantizeParams{},
         op.prepare_input && prepared_later(*op.prepare_input) ? quantize_params(*op.prepare_input)
                                                               : QuantizeParams{},
         tokens_, ahead_});
}

void CudaBackend::enqueue(const HeadLinear &op) {
    heads_.enqueue(
        launcher_, op, weight(op.weight),
        {{slot(op.in), stride(op.in)}, {slot(op.out), stride(op.out)}, weights_.tiles(op.weight), tokens_});
}

void CudaBackend::enqueue(const CopyOp &op) {
    CopyParams params{};
    params.tokens = tokens_;
    for (const Copy &c : op.copies)
        params.copy[params.copies++] = {slot(c.in) + c.from.first,
                                        slot(c.out) + c.to.first,
                                        stride(c.in),
                                        stride(c.out),
                                        c.from.stride,
                                        c.to.stride,
                                        c.count,
                                        static_cast<int32_t>(c.width)};
    run(copy_pieces_kernel(), copy_pieces_blocks(params), 0, params);
}

void CudaBackend::enqueue(const Rotate &op) {
    const RotateParams params{slot(op.in),   slot(op.out),   weights_.floats(op.signs),
                              stride(op.in), stride(op.out), static_cast<int32_t>(width(op.in)),
                              tokens_,       op.block,       op.signs_last};
    run(rotate_kernel(), rotate_blocks(params), kRotateShared, params);
}

void CudaBackend::enqueue(const Mix &op) {
    MixParams params{};
    const auto place = [&](const std::vector<Slot> &slots, MixParams::Slice *to) {
        int32_t count = 0;
        for (const Slot id : slots)
            for (int64_t at = 0; at < width(id); at += op.width) to[count++] = {slot(id) + at, stride(id)};
        return count;
    };
    params.inputs = place(op.in, params.in);
    params.outputs = place(op.out, params.out);
    if (op.coefficients != kNoSlot) {
        params.coefficients = slot(op.coefficients);
        params.coefficients_stride = stride(op.coefficients);
    }
    params.scale = op.scale;
    params.width = static_cast<int32_t>(op.width);
    params.tokens = tokens_;
    run(mix_kernel(), (int64_t{tokens_} * params.outputs * op.width + 255) / 256, 0, params);
}

void CudaBackend::enqueue(const Lerp &op) {
    LerpParams params{};
    if (op.from != kNoSlot) params.from = slot(op.from), params.from_stride = stride(op.from);
    if (op.to != kNoSlot) params.to = slot(op.to), params.to_stride = stride(op.to);
    if (op.coefficients != kNoSlot)
        params.coefficients = slot(op.coefficients), params.coefficients_stride = stride(op.coefficients);
    params.weight = weights_.floats(op.weight);
    for (const Slot out : op.out) params.output[params.outputs++] = {slot(out), stride(out)};
    params.width = static_cast<int32_t>(width(op.in()));
    params.tokens = tokens_;
    run(lerp_kernel(), (int64_t{tokens_} * params.width + 255) / 256, 0, params);
}

void CudaBackend::enqueue(const StreamWeights &op) {
    const bool mixes = op.mix != kNoSlot;
    run(stream_weights_kernel(), (tokens_ + kStreamWarps - 1) / kStreamWarps, kStreamShared,
        {slot(op.in), weights_.floats(op.scales), weights_.floats(op.bias), slot(op.read),
         mixes ? slot(op.mix) : nullptr, stride(op.in), stride(op.read), mixes ? stride(op.mix) : 0,
         static_cast<int32_t>(width(op.read)), op.iterations, tokens_, op.eps});
}

void CudaBackend::enqueue(const JoinAttention &op) {
    JoinParams params{};
    for (const auto &[in, sums] : op.parts)
        params.part[params.parts++] = {slot(in), slot(sums), stride(in), stride(sums)};
    params.out = slot(op.out), params.out_stride = stride(op.out);
    params.heads = op.heads, params.dim = static_cast<int32_t>(width(op.out) / op.heads);
    params.tokens = tokens_;
    run(join_attention_kernel(), (tokens_ * width(op.out) + 255) / 256, 0, params);
}

void CudaBackend::enqueue(const ActivateOp &op) {
    const Activation &g = op.step;
    const bool has_up = g.up != kNoSlot;
    const ActivateParams params{slot(g.gate),
                                has_up ? slot(g.up) : nullptr,
                                slot(g.out),
                                stride(g.gate),
                                has_up ? stride(g.up) : 0,
                                stride(g.out),
                                static_cast<int32_t>(width(g.out)),
                                tokens_,
                                op.activation,
                                g.parameters.positive,
                                g.parameters.negative,
                                g.parameters.beta,
                                g.parameters.eps};
    run(activate_kernel(), tokens_ * ((width(g.out) + 255) / 256), 0, params);
}

void CudaBackend::enqueue(const AttentionOp &op) {
    QuantizeParams quantize{};
    if (op.prepare) quantize = quantize_params(*op.prepare);
    const bool quantized =
        attention_.enqueue(launcher_, op.step, op.prepare ? &quantize : nullptr, attention_operands());
    if (op.prepare && !quantized) enqueue(*op.prepare);
}

// The batch's logit rows [first, first + count), at most kLinearTokens of them, and their top-k if requested.
void CudaBackend::enqueue_logits(int32_t first, int32_t count) {
    const Logits &step = *plan_.logits;
    logits_.enqueue(
        launcher_, weights_,
        {slot(step.in), stride(step.in), input_.logit_rows(), quantized(width(step.in), 0), ahead_}, first,
        count);
    if (now_.candidates > 0)
        logits_.enqueue_candidates(launcher_, first, count, now_.candidates, now_.masked);
}

}  // namespace runnel::kernels::cuda
