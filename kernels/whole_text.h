// A batch that is one whole text, from position 0 on, and a cache for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

// A cache for one sequence of `context` cells.
CacheConfig cache_of_one(const Program &program, int32_t context);

class WholeText {
  public:
    // tokens and cancel must outlive it. context: as for cache_of_one().
    WholeText(const Program &program, std::span<const int32_t> tokens, int32_t context,
              const std::atomic<bool> *cancel);
    WholeText(const WholeText &) = delete;
    WholeText &operator=(const WholeText &) = delete;
    Batch batch;  // no logits; the part can be set

  private:
    std::vector<int32_t> positions_;
    SequenceSpan sequence_;
    std::vector<BlockId> table_;
};

}  // namespace runnel::kernels
