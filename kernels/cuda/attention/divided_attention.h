// Attention over a cache layer whose cells several GPUs divide (CacheLayer::divided): of each sequence, a rank holds some
// ranges of kRangeCells cells, which are whole splits (attention.h). Every rank has the queries, keys and values of all new
// tokens, stores those of its own cells, and ends with the outputs of all. The kernels compute a split as those of one device
// do, and the splits of a row are joined in the same order, so the bits are those of one device, whatever the number of ranks
// and whichever range is where. There are two ways:
// - Few tokens of a sequence (decode, drafts): a rank attends to its own splits. The rows [m, l, o] of all splits are
//   exchanged, and every rank joins them.
//   Received: heads * (dim_v + 2) * 4 bytes per token for each split of another rank.
// - Many tokens: the pages of all cells of these sequences are exchanged, in pieces of up to 16 MiB, and put into a copy of
//   the layer. A rank attends for some K/V heads, or, if there are fewer of these than ranks, for some tokens. Then
//   outputs are exchanged.
//   Received: the pages of the other ranks' cells; of the rank's K/V heads, or of all.
// Nothing is sent while the device attends: messages and kernels are in one stream.
//
// Memory of a rank, besides its share of the cache: the copy of a layer (1 / layers of its cache if the ranks divide the K/V
// heads evenly), two buffers of messages, and one token's rows for each split that all ranks hold together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/divided_batch.h"
#include "kernels/cuda/nccl/messages.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/cuda/runtime/runtime.h"

namespace runnel::kernels::cuda {

class DividedAttention {
  public:
    DividedAttention() = default;
    // Allocates the memory for batches of `max_tokens` tokens, or none if no layer is divided.
    DividedAttention(const Program &program, const CacheConfig &cache, int32_t max_tokens);

    // Whether a layer is divided.
    bool attends() const { return !groups_.empty(); }

    // Bytes of device memory that the constructor allocates.
    static size_t bytes(const Program &program, const CacheConfig &cache, int32_t max_tokens);
    // Loads the kernels of a step of a divided layer, besides those of AttentionRunner::prepare().
    static void prepare(const Program &program, const Attention &step, const CacheConfig &cache);

    // Lists what the batch needs and uploads it. Preconditions: the stream is idle, apart from what the batch has enqueued.
    void upload(Stream &stream, const Batch &batch);

    // Attends for the batch of the last upload(). `params`: the step's, with its pages where the first block of all ranks would
    // be; keys and values are in the cache already.
    void attend(Launcher &launcher, Messages &messages, const Attention &step, AttentionParams params) const;

  private:
    // Bytes, by purpose.
    struct Sizes {
        size_t copy = 0, sent = 0, received = 0, partial = 0, lists = 0;
    };
    // K/V heads of a layer in the copies of pages, and the bytes of a page of K and of V.
    struct Pages {
        int32_t kv_heads;
        size_t k, v;
        size_t both() const { return k + v; }
    };
    struct HeadRange {
        int32_t first, count;
    };

    static std::vector<DividedGroup> groups_of(const Program &program, const CacheConfig &cache,
                                               int32_t max_tokens);
    static Sizes sizes(const Program &program, const CacheConfig &cache, int32_t max_tokens);
    static bool by_heads(const DividedGroup &group, int32_t kv_heads) { return kv_heads >= group.ranks; }
    static HeadRange heads_of(const DividedGroup &group, int32_t kv_heads, int32_t rank);
    static int32_t blocks_of_piece(const DividedGroup &group, const Pages &pages);

    template <class T>
    const T *listed(size_t word) const {
        return reinterpret_cast<const T *>(lists_.as<const int32_t>() + word);
    }
    void attend_few(Launcher &launcher, Messages &messages, const DividedGroup &group,
                    const DividedBatch::Round &round, AttentionParams p) const;
    void attend_many(Launcher &launcher, Messages &messages, const DividedGroup &group,
                     const DividedBatch &batch, AttentionParams p) const;
    void fetch_pages(Launcher &launcher, Messages &messages, const DividedGroup &group,
                     const DividedBatch &batch, const AttentionParams &p, const Pages &pages) const;
    void exchange_outputs(Launcher &launcher, Messages &messages, const DividedGroup &group,
                          const DividedBatch &batch, const AttentionParams &p) const;

    const Program *program_ = nullptr;
    std::vector<DividedGroup> groups_;   // those that are divided
    std::vector<DividedBatch> batches_;  // of the last upload(), by group
    std::vector<int32_t> words_;
    PinnedMemory staged_;
    DeviceMemory lists_;  // words_ on the device
    DeviceMemory copy_, sent_, received_, partial_;
};

}  // namespace runnel::kernels::cuda
