// Everything that changes between batches, in device memory at fixed addresses, where kernels
// recorded in a graph read it.
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

    // Bytes of device memory that the constructor allocates: for the block tables, and for everything else.
    static size_t table_bytes(const CacheConfig &cache, int32_t max_tokens);
    static size_t bytes(const Program &program, int32_t max_tokens);

    // Enlarges the block tables if the batch needs it. Returns true when they, or their strides, changed. A
    // table has one entry per block of the sequence; the constructor allocates entries for a million cells
    // each, or for the context if that is shorter. (Windows return blocks, so a sequence can be longer than
    // the pool.) Precondition: the stream is idle.
    [[nodiscard]] bool reserve(const Batch &batch);

    // Preconditions: the batch is valid (backend.h), reserve() was called, and the copies
    // of the last upload are done.
    void upload(Stream &stream, const Batch &batch);
    // Whether the last upload() had the same tokens and logit rows, as all parts of a batch have.
    bool holds(const Batch &batch) const;

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
    // The query factor of every token; null without a temperature. Precondition: one of the program's
    // attention steps has this temperature.
    const float *factors(const Attention::Temperature &temperature) const;

  private:
    static constexpr int64_t kInfo = 3;  // arrays of int32 before the sequences; the factors follow them
    static constexpr int64_t kSequenceInts = 6;
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
    std::vector<Attention::Temperature> temperatures_;  // the distinct ones of the program
    PinnedMemory host_;
    DeviceMemory device_;
    std::vector<Tables> tables_;
};

}  // namespace runnel::kernels::cuda
