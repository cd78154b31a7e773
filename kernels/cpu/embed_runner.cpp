#include "kernels/cpu/embed_runner.h"

#include <algorithm>

namespace runnel::kernels::cpu {

size_t EmbedRunner::scratch_bytes(const Program &program, const Embed &step) {
    if (step.positions == kNoWeight) return 0;
    return static_cast<size_t>(program.slots[static_cast<size_t>(step.out)].width) * sizeof(float);
}

void EmbedRunner::run(const Embed &step, const Batch &batch, int32_t rows, int thread) noexcept {
    s_.pool->for_ranges(thread, rows, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            const int32_t token = batch.tokens[static_cast<size_t>(t)];
            float *out = row(step.out, t);
            if (step.table == kNoWeight) {
                *out = static_cast<float>(token + 1);
                continue;
            }
            const Weight &table = weight(step.table);
            look_up(table, static_cast<size_t>(token), out);
            if (step.scale != 1) s_.vector->scale(step.scale, out, table.cols, out);
            if (step.positions == kNoWeight) continue;
            const Weight &positions = weight(step.positions);
            const int64_t position =
                std::min<int64_t>(batch.positions[static_cast<size_t>(t)], positions.rows - 1);
            float *learned = s_.scratch[static_cast<size_t>(thread)].as<float>();
            look_up(positions, static_cast<size_t>(position), learned);
            s_.vector->add(out, learned, table.cols, out);
        }
    });
}

void EmbedRunner::run(const HashedEmbed &step, int32_t rows, int thread) noexcept {
    const Weight &table = weight(step.table);
    s_.pool->for_ranges(thread, rows, [&](int64_t t0, int64_t t1) {
        for (int64_t t = t0; t < t1; ++t) {
            float *out = row(step.out, t);
            for (size_t head = 0; head < step.hash->heads.size(); ++head, out += table.cols)
                look_up(table, HashedEmbed::row(*step.hash, row(step.tokens, t), head), out);
        }
    });
}

}  // namespace runnel::kernels::cpu
