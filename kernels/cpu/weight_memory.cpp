#include "kernels/cpu/weight_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "gguf/base/bytes.h"
#include "kernels/cpu/linear_lookup.h"
#include "kernels/cpu/system_memory.h"
#include "kernels/steps.h"

namespace runnel::kernels::cpu {
namespace {

// Weights that a pass reads whole, in the order of their first use.
template <typename F>
void for_each_read_weight(const Program &program, F &&f) {
    std::set<WeightId> seen;
    for (const Step &step : program.steps)
        visit_read_weights(step, [&](WeightId id) {
            if (program.weights[static_cast<size_t>(id)].bytes() > 0 && seen.insert(id).second) f(id);
        });
}

constexpr size_t kAlignment = 64;           // of a copy: a cache line
constexpr size_t kPiece = size_t{2} << 20;  // bytes that one thread copies at a time

size_t aligned(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct Piece {
    const std::byte *from;
    std::byte *to;
    size_t bytes;
};

// Rows of a matrix, and the matrix's tiles.
struct Rows {
    const Weight *weight;
    int64_t row0, row1;
    std::byte *tiles;
    size_t bytes;
};

// Calls work(piece) for all pieces on all threads, in rounds between which the progress is reported, by their `bytes`. Throws
// BackendError{Cancelled}.
template <typename P, typename Work>
void work_on(std::span<const P> pieces, Pool &pool, const LoadProgress &progress, Work &&work) {
    size_t done = 0, all = 0;
    for (const P &piece : pieces) all += piece.bytes;
    const size_t round = 16 * static_cast<size_t>(pool.threads());
    for (; !pieces.empty(); pieces = pieces.subspan(std::min(round, pieces.size()))) {
        const auto now = pieces.first(std::min(round, pieces.size()));
        pool.run([&](int thread) noexcept {
            pool.for_each(thread, static_cast<int64_t>(now.size()),
                          [&](int64_t i) { work(now[static_cast<size_t>(i)]); });
        });
        for (const P &piece : now) done += piece.bytes;
        if (progress && !progress(done, all))
            throw BackendError(BackendError::Kind::Cancelled, "interrupted");
    }
}

// A thread of a product computes the sums of its input, which takes as long as two to three of these rows of tiles.
constexpr int64_t kLeastTileRows = 4;

// Calls f(weight) for the matrices of which tiles are made.
template <typename F>
void for_each_rearranged(const Program &program, const LookupKernels &lookup, int threads, F &&f) {
    const auto see = [&](WeightId id) {
        const Weight &weight = program.weights[static_cast<size_t>(id)];
        if (lookup.most_tokens(weight.type) > 0 && lookup_stride(weight.type, weight.cols) > 0 &&
            weight.row_stride == 0 && weight.rows >= kLeastTileRows * kLookupRows * threads)
            f(weight);
    };
    for (const Step &step : program.steps) {
        if (const auto *linear = std::get_if<Linear>(&step))
            for (const Linear::Part &part : linear->parts) see(part.weight);
        if (const auto *logits = std::get_if<Logits>(&step)) see(logits->weight);
    }
}

}  // namespace

size_t weights_read(const Program &program) {
    size_t bytes = 0;
    for_each_read_weight(
        program, [&](WeightId id) { bytes += aligned(program.weights[static_cast<size_t>(id)].bytes()); });
    return bytes;
}

void WeightMemory::take(Program &program, Pool &pool, const LoadProgress &progress) {
    const std::scoped_lock guard(mutex_);
    if (storage_.copied) return copy(program, pool, progress);
    if (storage_.locked)
        for_each_read_weight(program, [&](WeightId id) {
            const Weight &weight = program.weights[static_cast<size_t>(id)];
            for (int64_t m = 0; m < weight.count; ++m) lock(weight.matrix(m), weight.matrix_bytes());
        });
}

// Two weights with the same bytes (tied embeddings under two names) have one copy.
WeightMemory::Place WeightMemory::place_of(const Weight &weight) {
    return {weight.data, weight.bytes(), weight.stride == 0 ? 1 : weight.count};
}

void WeightMemory::copy(Program &program, Pool &pool, const LoadProgress &progress) {
    std::map<Place, size_t> offsets;  // of the new copies in the buffer
    std::vector<const Weight *> missing;
    size_t bytes = 0;
    for_each_read_weight(program, [&](WeightId id) {
        const Weight &weight = program.weights[static_cast<size_t>(id)];
        if (copies_.contains(place_of(weight)) || !offsets.emplace(place_of(weight), bytes).second) return;
        missing.push_back(&weight);
        bytes += aligned(weight.bytes());
    });
    const size_t available = system_memory().available;
    if (available > 0 && bytes > available)
        throw BackendError(BackendError::Kind::OutOfMemory,
                           "a copy of the weights needs " + base::mebibytes(bytes) + ", but only " +
                               base::mebibytes(available) + " of memory is free: leave out --load-mode");
    LazyBuffer buffer(bytes, "a copy of the weights; without --load-mode they stay in the file");
    std::vector<Piece> pieces;
    for (const Weight *weight : missing) {
        std::byte *to = buffer.data() + offsets.at(place_of(*weight));
        // Adjacent matrices are one range.
        const int64_t ranges = weight->stride == 0 ? 1 : weight->count;
        const size_t each = weight->bytes() / static_cast<size_t>(ranges);
        for (int64_t range = 0; range < ranges; ++range, to += each)
            for (size_t at = 0; at < each; at += kPiece)
                pieces.push_back({weight->matrix(range) + at, to + at, std::min(kPiece, each - at)});
    }
    work_on(std::span<const Piece>(pieces), pool, progress,
            [](const Piece &piece) { std::memcpy(piece.to, piece.from, piece.bytes); });
    for (const auto &[place, offset] : offsets) copies_.emplace(place, buffer.data() + offset);
    if (storage_.locked) lock(buffer.data(), buffer.size());
    buffers_.push_back(std::move(buffer));
    for_each_read_weight(program, [&](WeightId id) {
        Weight &weight = program.weights[static_cast<size_t>(id)];
        weight.data = copies_.at(place_of(weight));
        weight.stride = 0;
    });
}

WeightMemory::Matrix WeightMemory::matrix_of(const Weight &weight) {
    return {weight.data, weight.type, weight.rows, weight.cols};
}

void WeightMemory::rearrange(const Program &program, const LookupKernels &lookup, size_t room, Pool &pool,
                             const LoadProgress &progress) {
    const std::scoped_lock guard(mutex_);
    if (!storage_.rearranged) return;
    std::map<Matrix, size_t> offsets;  // of the new tiles in the buffer
    std::vector<const Weight *> missing;
    size_t bytes = 0;
    for_each_rearranged(program, lookup, pool.threads(), [&](const Weight &weight) {
        if (tiles_.contains(matrix_of(weight)) || !offsets.emplace(matrix_of(weight), bytes).second) return;
        missing.push_back(&weight);
        bytes += lookup_bytes(weight.type, weight.rows, weight.cols);
    });
    if (bytes == 0 || bytes > room) return;
    LazyBuffer buffer(bytes, "weights in the order of decoding");
    std::vector<Rows> pieces;
    for (const Weight *weight : missing) {
        const int64_t stride = lookup_stride(weight->type, weight->cols),
                      at_once = std::max<int64_t>(static_cast<int64_t>(kPiece) / stride, 1) * kLookupRows;
        std::byte *tiles = buffer.data() + offsets.at(matrix_of(*weight));
        for (int64_t row = 0; row < weight->rows; row += at_once) {
            const int64_t end = std::min(row + at_once, weight->rows);
            pieces.push_back({weight, row, end, tiles, lookup_bytes(weight->type, end - row, weight->cols)});
        }
    }
    work_on(std::span<const Rows>(pieces), pool, progress, [](const Rows &piece) {
        write_lookup_tiles(piece.weight->type, piece.weight->data, piece.weight->cols, piece.row0, piece.row1,
                           piece.tiles);
    });
    for (const auto &[matrix, offset] : offsets) tiles_.emplace(matrix, buffer.data() + offset);
    buffers_.push_back(std::move(buffer));
}

const std::byte *WeightMemory::tiles(const Weight &weight) const {
    const std::scoped_lock guard(mutex_);
    const auto found = tiles_.find(matrix_of(weight));
    return found == tiles_.end() ? nullptr : found->second;
}

void WeightMemory::lock(const std::byte *data, size_t bytes) {
    if (bytes == 0 || !problem_.empty()) return;
    // (Linux rounds the range to whole pages.)
    if (mlock(data, bytes) == 0) return;
    const int error = errno;
    problem_ = "the weights are not locked in memory: " + std::generic_category().message(error);
    struct rlimit limit = {};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        problem_ += " (ulimit -l: " + std::to_string(limit.rlim_cur >> 10) + " KiB)";
}

std::string WeightMemory::problem() const {
    const std::scoped_lock guard(mutex_);
    return problem_;
}

}  // namespace runnel::kernels::cpu
