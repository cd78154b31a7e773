// Runs Attention steps: norms and rotations of queries and keys, cells for the new keys and values, then the
// tokens attend.
//
// How the work is shared out changes no bit (attention.h). append(): a unit is the query heads of one K/V
// head and token, or the new keys and values of one page of a K/V head. attend(): a unit is a tile of tokens
// of one sequence and K/V head; for a few tokens of one sequence with a long past and few heads, a range of
// keys of one head, joined in a second phase.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vector.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

class AttentionRunner {
  public:
    // What the backend lends; all of it outlives the runner.
    struct Surroundings {
        const Program *program;
        const AttentionKernels *kernels;
        const VectorKernels *vector;
        Pool *pool;
        const CacheMemory *cache;
        std::span<const LazyBuffer> slots;
        std::span<const LazyBuffer> scratch;  // the largest scratch_bytes() of the program, per thread
    };

    AttentionRunner() = default;
    // Room for batches of `max_tokens` tokens. Throws BackendError{OutOfMemory}.
    AttentionRunner(const Surroundings &surroundings, const CacheConfig &cache, int32_t max_tokens);

    // What a step needs per thread.
    static size_t scratch_bytes(const Attention &step);

    // Called by all threads, with a barrier after each; rotations() once per batch, before the others.
    void rotations(const Batch &batch, int thread) noexcept;
    void append(const Attention &step, const Batch &batch, int thread) noexcept;
    void attend(const Attention &step, const Batch &batch, int thread) noexcept;

  private:
    // Cosines and sines of the tokens' positions, per RopeTable: [max_tokens][pairs].
    struct Rotations {
        std::vector<LazyBuffer> cosines, sines;
    };

    size_t partials_of(const Attention &step, const CacheConfig &cache) const;
    void turn(const Attention &step, float *head, int32_t heads, WeightId norm, int32_t token,
              const Rotations &rotations) noexcept;
    void prepare_queries(const Attention &step, int32_t kv_head, int32_t token, int32_t position) noexcept;
    struct Share;
    Share share(int64_t units, int thread) const noexcept;
    void append_cells(const Attention &step, const Batch &batch, int thread) noexcept;
    void append_cell(const Attention &step, const Batch &batch, const SequenceSpan &sequence, int32_t kv_head,
                     int32_t token, float *work) noexcept;
    void rotate_back(const Attention &step, const AttentionTile &tile) noexcept;
    AttentionTile tile(const Attention &step, const SequenceSpan &sequence, int32_t kv_head, int32_t first,
                       int32_t tokens) const noexcept;
    void attend_by_ranges(const Attention &step, const SequenceSpan &sequence, int thread) noexcept;

    // Layers whose values are their keys, or that share those of a layer with other heads, stay as they are.
    bool can_rotate(const Attention &step) const {
        return s_.program->cache_layers[static_cast<size_t>(step.cache)].head_dim_v > 0;
    }
    size_t group(const Attention &step) const {
        return static_cast<size_t>(s_.program->cache_layers[static_cast<size_t>(step.cache)].group);
    }
    const float *vector_of(WeightId id) const {
        return id == kNoWeight
                   ? nullptr
                   : reinterpret_cast<const float *>(s_.program->weights[static_cast<size_t>(id)].data);
    }
    int64_t width(Slot slot) const { return s_.program->slots[static_cast<size_t>(slot)].width; }
    float *row(Slot slot, int32_t token) const {
        return s_.slots[static_cast<size_t>(slot)].as<float>() + token * width(slot);
    }
    float *sink_row(const Attention &step, int32_t token) const {
        return sink_q_.as<float>() + token * width(step.q);
    }
    float *scratch(int thread) const { return s_.scratch[static_cast<size_t>(thread)].as<float>(); }

    Surroundings s_{};
    CacheType k_type_ = CacheType::F16, v_type_ = CacheType::F16;
    LazyBuffer partials_;                   // of attention over ranges: [kv head][range]
    Rotations rotations_, sink_rotations_;  // of positions, and of those that sink cells are seen from
    int32_t sink_position_ = -1;            // the largest of the latter; -1: no layer has sink cells
    LazyBuffer sink_q_;                     // the queries of the layer at hand for sink cells
};

}  // namespace runnel::kernels::cpu
