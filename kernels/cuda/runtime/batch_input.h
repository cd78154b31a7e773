// What differs from batch to batch, in device memory at addresses that never change: kernels recorded in a
// graph read it there.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/runtime/runtime.h"

namespace runnel::kernels::cuda {

class BatchInput {
  public:
    BatchInput() = default;
    BatchInput(const Program &program, const CacheConfig &cache, int32_t max_tokens);

    // Bytes of the device's memory that the constructor takes for the tables of a cache, and for all else.
    static size_t table_bytes(const CacheConfig &cache, int32_t max_tokens);
    static size_t bytes(const Program &program, int32_t max_tokens);

    // Makes room for the batch's block tables. True when they, or their strides, moved: a table has an entry
    // per block of the sequence, and the constructor makes room for a million cells of each, or the context
    // if that is less. Windows return blocks, so longer sequences need not be larger. Precondition: the
    // stream is idle.
    [[nodiscard]] bool reserve(const Batch &batch);

    // Precondition: the batch is as backend.h says and reserve() was called; the copies of the last upload
    // are done.
    void upload(Stream &stream, const Batch &batch);

    const int32_t *tokens() const { return device_.as<int32_t>(); }
    const int32_t *positions() const { return tokens() + max_tokens_; }
    const int32_t *logit_rows() const { return positions() + max_tokens_; }
    const int32_t *sequence_count() const { return logit_rows() + max_tokens_; }
    const SequenceInfo *sequences() const {
        return reinterpret_cast<const SequenceInfo *>(tokens() + kInfo * max_tokens_ + 4);
    }
    // [sequence][table_stride] block ids of a cache group.
    const int32_t *tables(int32_t group) const {
        return tables_[static_cast<size_t>(group)].device.as<int32_t>();
    }
    int64_t table_stride(int32_t group) const { return tables_[static_cast<size_t>(group)].stride; }
    // What the queries of every token are multiplied by; null without a temperature. Precondition: one of the
    // program's attention steps has it.
    const float *factors(const Attention::Temperature &temperature) const;

  private:
    static constexpr int64_t kInfo = 3;  // arrays of int32 before the sequences; behind them the factors
    static constexpr int64_t kSequenceInts = 5;
    static int64_t rounded(int32_t tokens) { return (int64_t{tokens} + 3) / 4 * 4; }
    static int64_t factors_at(int64_t tokens) { return kInfo * tokens + 4 + kSequenceInts * tokens; }
    int64_t factors_at() const { return factors_at(max_tokens_); }

    struct Tables {
        Tables(int64_t entries, int64_t sequences);
        int64_t stride;
        PinnedMemory host;
        DeviceMemory device;
    };
    int64_t max_tokens_ = 0;
    std::vector<Attention::Temperature> temperatures_;  // of the program, each once
    PinnedMemory host_;
    DeviceMemory device_;
    std::vector<Tables> tables_;
};

}  // namespace runnel::kernels::cuda
