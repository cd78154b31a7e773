// `batch --explain`: where the cells of the KV cache went, compared with reservation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/commands/json.h"
#include "engine/completion/queue.h"
#include "engine/decode/engine.h"
#include "engine/measure/cache_watch.h"
#include "engine/measure/paging.h"

namespace runnel::commands {

class BatchExplain {
  public:
    // Throws UsageError if the model has no KV cache.
    BatchExplain(decode::Engine &engine, int32_t parallel);

    // After a pass, with the sequences that are in the cache.
    void look(std::span<const cache::SequenceCache *const> sequences) { watch_.look(sequences); }
    // A request that was answered; max_tokens < 0: no limit.
    void add(const completion::Usage &usage, int64_t max_tokens);

    // For a terminal of 80 columns; ASCII if TERM is dumb or the locale is not UTF-8.
    std::string text(const completion::CompletionQueue &queue) const;
    Json json(const completion::CompletionQueue &queue) const;

  private:
    decode::Engine &engine_;
    measure::PagingMemory memory_;
    measure::CacheWatch watch_;
    std::vector<measure::PagingRequest> requests_;
};

// A character per page, 64 to a line, with a legend; of a large pool each character stands for several pages and
// shows the one most in use. Pages after the last one in use are left out.
std::string block_map(std::span<const measure::BlockUse> pages, bool ascii);

}  // namespace runnel::commands
