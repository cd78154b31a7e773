// Where the CPU backend reads weights: in the mapped file, or in copies in this process's own memory; some formats also in tiles
// (linear_lookup.h), from which a pass of few tokens reads them.
//
// Pages of a mapped file cost nothing at load, are shared with other programs, and are dropped and read again when memory
// is short. But most file systems keep a file in pages of 4 KiB, and decoding, which reads every weight for every token,
// then also waits for address translation. Copies lie in pages of 2 MiB, in the order in which a pass reads them.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/linear_lookup.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

// The bytes of the weights that a pass reads whole, or by experts: all but tables of which it reads single rows (token
// embeddings that are not also the output matrix).
size_t weights_read(const Program &program);

// Shared by the backends of one device, so that a draft block and its model have one copy of the output matrix. Any thread
// may call its functions.
class WeightMemory {
  public:
    explicit WeightMemory(WeightStorage storage) : storage_(storage) {}

    // Copies the program's weights, and locks them in memory, as the storage says; afterwards `program` refers to the copies,
    // which live as long as this object. Weights that an earlier program brought are not copied again. Throws
    // BackendError: OutOfMemory if the copies do not fit in the free memory, Cancelled if `progress` returns false; the
    // program is then unchanged.
    void take(Program &program, Pool &pool, const LoadProgress &progress);

    // Writes tiles of the program's matrices whose format gains by them and whose rows are enough for all threads, if the storage
    // says so and `room` bytes are enough for all that are missing. Afterwards tiles() has them, which live as long as this object:
    // so must the weights. Called after take(). Throws as take(); there are then no new tiles.
    void rearrange(const Program &program, const LookupKernels &lookup, size_t room, Pool &pool,
                   const LoadProgress &progress);

    // Null: there are none. The weight is one of a program after take().
    const std::byte *tiles(const Weight &weight) const;

    // The reason why weights are not locked, in one line; empty if all are, or if the storage is not to be locked.
    std::string problem() const;

  private:
    using Place = std::tuple<const std::byte *, size_t, int64_t>;  // of a weight: data, bytes, matrices
    using Matrix = std::tuple<const std::byte *, gguf::Type, int64_t, int64_t>;  // data, type, rows, columns

    static Place place_of(const Weight &weight);
    static Matrix matrix_of(const Weight &weight);
    void copy(Program &program, Pool &pool, const LoadProgress &progress);
    void lock(const std::byte *data, size_t bytes);

    const WeightStorage storage_;
    mutable std::mutex mutex_;
    std::vector<LazyBuffer> buffers_;
    std::map<Place, const std::byte *> copies_;
    std::map<Matrix, const std::byte *> tiles_;
    std::string problem_;
};

}  // namespace runnel::kernels::cpu
