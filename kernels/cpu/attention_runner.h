// Runs Attention and Rope steps: norms and rotates queries and keys, appends the new keys and values, then computes
// the attention of all tokens.
//
// The distribution of the work does not change a bit of the results (attention.h). append(): a unit is the
// query heads of one token and K/V head, or the new keys and values of one page of a K/V head. attend(): a
// unit is a tile of tokens of one sequence and K/V head. With few tokens of one sequence, a long past and few
// heads, a unit is one range of keys of one head, and a second phase joins the ranges.
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
    // Owned by the backend; everything here outlives the runner.
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
    // Allocates memory for batches of `max_tokens` tokens. Throws BackendError{OutOfMemory}.
    AttentionRunner(const Surroundings &surroundings, const CacheConfig &cache, int32_t max_tokens);

    // Bytes of scratch that a step needs per thread.
    static size_t scratch_bytes(const Attention &step);

    // An attention whose append() rotates an indexer's queries and appends its keys.
    static Attention keys_of(const Indexer &step);

    // Called by all threads, with a barrier after each; rotations() once per batch, before the others.
    void rotations(const Batch &batch, int thread) noexcept;
    void run(const Rope &step, const Batch &batch, int thread) noexcept;
    void append(const Attention &step, const Batch &batch, int thread) noexcept;
    void attend(const Attention &step, const Batch &batch, int thread) noexcept;

    // For DividedAttention: the rows of some tokens of a sequence, and the last step of their outputs.
    AttentionTile tile(const Attention &step, const SequenceSpan &sequence, int32_t kv_head, int32_t first,
                       int32_t tokens) const noexcept;
    void rotate_back(const Attention &step, const AttentionTile &tile) const noexcept;

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
    void attend_by_ranges(const Attention &step, const SequenceSpan &sequence, int thread) noexcept;

    const CacheLayer &layer(const Attention &step) const {
        return s_.program->cache_layers[static_cast<size_t>(step.cache)];
    }
    // Values that are the first dimensions of the keys are not rotated, and so neither are these keys.
    bool rotates_k(const Attention &step) const {
        return layer(step).f16_keys || (layer(step).head_dim_v > 0 && rotates_keys(k_type_));
    }
    bool rotates_v(const Attention &step) const {
        return layer(step).head_dim_v > 0 && rotates_values(v_type_);
    }
    size_t group(const Attention &step) const { return static_cast<size_t>(layer(step).group); }
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
    LazyBuffer partials_;                   // of attend_by_ranges(): [kv head][range]
    Rotations rotations_, sink_rotations_;  // of token positions, and of those used for sink cells
    int32_t sink_position_ = -1;            // the largest position used for sink cells; -1: no layer has them
    LazyBuffer sink_q_;                     // the current layer's queries for sink cells
};

}  // namespace runnel::kernels::cpu
