// Runs the Indexer steps of a plan: appends their keys, and owns the scores (indexer.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/attention/attention_runner.h"
#include "kernels/cuda/runtime/launcher.h"
#include "kernels/program.h"

namespace runnel::kernels::cuda {

class IndexerRunner {
  public:
    IndexerRunner() = default;
    // Allocates the scores; none if the program has no indexers. The program outlives it.
    IndexerRunner(const Program &program, const CacheConfig &cache);

    // Bytes that the constructor will allocate: kIndexTurn scores for every cell of the longest sequence.
    static size_t bytes(const Program &program, const CacheConfig &cache);

    // Loads the kernels. Throws if the device cannot run them.
    static void prepare();

    void enqueue(Launcher &launcher, const Indexer &step, const AttentionRunner &attention,
                 const AttentionRunner::Operands &operands) const;

  private:
    const Program *program_ = nullptr;
    int64_t cells_ = 0;  // the most cells of a sequence
    DeviceMemory scores_;
};

}  // namespace runnel::kernels::cuda
