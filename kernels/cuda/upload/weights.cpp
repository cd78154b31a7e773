#include "kernels/cuda/upload/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <system_error>

#include "kernels/cpu/pool.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/upload/repack_kernel.h"

namespace runnel::kernels::cuda {
namespace {

constexpr size_t kTileAlignment = 256;
constexpr size_t kBufferBytes = size_t{8} << 20;  // of a pinned buffer: saturates the bus, cheap to pin
constexpr int kPieces = 4;
constexpr size_t kSliceBytes = size_t{256} << 10;  // that a reader thread copies at a time
constexpr size_t kBytesPerReader = size_t{1} << 20;
constexpr int kMostReaders = 8;
// Threads of the repacking kernels take several elements where there are more than these blocks have threads.
constexpr int64_t kMostBlocks = 1024, kThreads = 256;
uint32_t repack_blocks(int64_t threads) {
    return static_cast<uint32_t>(std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, kMostBlocks));
}

size_t aligned(size_t bytes) {
    return (bytes + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

// places: Plan::places of the weight.
size_t device_bytes(const Weight &w, WeightUse use, int32_t places) {
    if (use == WeightUse::None) return 0;
    if (use == WeightUse::Floats) return aligned(w.bytes());
    return aligned(matrix_tile_bytes(w) * static_cast<size_t>(places > 0 ? places : w.count));
}

size_t host_bytes(const Weight &w, int32_t places) {
    return places > 0 ? matrix_tile_bytes(w) * static_cast<size_t>(w.count) : 0;
}

// Size of a pinned buffer: at least 16 rows of the widest matrix, at most all weights.
size_t piece_bytes(const Program &program) {
    size_t all = 1, least = 1;
    for (const Weight &w : program.weights) {
        all += w.bytes();
        least = std::max(least, kTileRows * gguf::row_bytes(w.type, w.cols));
    }
    return std::max(least, std::min(kBufferBytes, all));
}

// Threads that read the file: no more than the bus can use, and one per megabyte at most; a single
// one if the system refuses more.
std::unique_ptr<cpu::Pool> start_readers(size_t bytes) {
    const int most = std::min(kMostReaders, cpu::usable_cpus());
    const auto count =
        static_cast<int>(std::clamp<size_t>(bytes / kBytesPerReader, 1, static_cast<size_t>(most)));
    try {
        return std::make_unique<cpu::Pool>(count);
    } catch (const std::system_error &) {
        return std::make_unique<cpu::Pool>(1);
    }
}

// The most rows of BF16 that a piece holds.
size_t exponent_rows(const Program &program, const Plan &plan, size_t piece) {
    size_t most = 0;
    for (size_t i = 0; i < program.weights.size(); ++i) {
        const Weight &w = program.weights[i];
        if (plan.uses[i] != WeightUse::Tiles || w.type != gguf::Type::BF16) continue;
        most = std::max(most, std::min(piece / gguf::row_bytes(w.type, w.cols), static_cast<size_t>(w.rows)));
    }
    return most;
}

class Uploader {
  public:
    // `all`: total bytes to upload. exponent_rows: the most rows of BF16 in a piece.
    Uploader(size_t bytes, size_t all, size_t exponent_rows, const LoadProgress &progress)
        : bytes_(bytes), all_(all), progress_(progress), readers_(start_readers(all)) {
        if (exponent_rows > 0) exponents_ = DeviceMemory(exponent_rows, "exponents");
        for (Piece &piece : pieces_) {
            piece.pinned = PinnedMemory(bytes);
            piece.staging = DeviceMemory(bytes, "staging");
        }
    }

    // Uploads all matrices of a weight as tiles, one after the other.
    void tiles(const Weight &w, std::byte *to) {
        Weight one = w;
        for (int64_t i = 0; i < w.count; ++i) {
            one.data = w.matrix(i);
            matrix(one, to + static_cast<size_t>(i) * matrix_tile_bytes(w));
        }
    }
    // Does the same and brings them back to host memory.
    void tiles_to_host(const Weight &w, std::byte *to) {
        const size_t bytes = matrix_tile_bytes(w);
        if (tiles_.size() < bytes) {
            stream_.wait();
            tiles_ = DeviceMemory(bytes, "experts");
        }
        Weight one = w;
        for (int64_t i = 0; i < w.count; ++i) {
            one.data = w.matrix(i);
            matrix(one, tiles_.data());
            stream_.copy_to_host(to + static_cast<size_t>(i) * bytes, tiles_.data(), bytes);
        }
    }

    void matrix(const Weight &w, std::byte *to) {
        const size_t row_bytes = gguf::row_bytes(w.type, w.cols);
        const int64_t tile_bytes = row_tile_bytes(tile_format(w.type), w.cols);
        const auto most = static_cast<int64_t>(bytes_ / row_bytes / kTileRows * kTileRows);
        for (int64_t row = 0; row < w.rows; row += most) {
            const int64_t rows = std::min(most, w.rows - row);
            const size_t stride = w.row_stride > 0 ? w.row_stride : row_bytes;
            Piece &piece = fill(w.data + static_cast<size_t>(row) * stride, static_cast<size_t>(rows),
                                row_bytes, stride);
            RawRows raw{w.type, piece.staging.as<const uint8_t>(), static_cast<int64_t>(row_bytes), rows,
                        w.cols};
            if (w.type == gguf::Type::BF16) {
                launch(stream_, row_exponents_kernel(), {repack_blocks(32 * rows)},
                       {raw, exponents_.as<uint8_t>()});
                raw.exponents = exponents_.as<const uint8_t>();
            }
            launch(stream_, repack_kernel(), {repack_blocks(row_tiles(rows) * tile_bytes / 4)},
                   {raw, reinterpret_cast<uint32_t *>(to + row / kTileRows * tile_bytes)});
            stream_.record(piece.done);
        }
    }

    void floats(const Weight &w, std::byte *to) {
        const size_t each =
            w.stride > 0 ? w.matrix_bytes() : w.bytes();  // bytes that are adjacent in the file
        for (int64_t i = 0; i < (w.stride > 0 ? w.count : 1); ++i)
            floats({w.matrix(i), each}, to + static_cast<size_t>(i) * each);
    }

    void finish() { stream_.wait(); }

  private:
    void floats(std::span<const std::byte> from, std::byte *to) {
        for (size_t at = 0; at < from.size(); at += bytes_) {
            const size_t size = std::min(bytes_, from.size() - at);
            Piece &piece = fill(from.data() + at, 1, size, size);
            stream_.copy_on_device(to + at, piece.staging.data(), size);
            stream_.record(piece.done);
        }
    }

    struct Piece {
        PinnedMemory pinned;
        DeviceMemory staging;
        Event done;
        bool used = false;
    };

    // Fills the next buffer of the ring with rows that are `stride` bytes apart and starts its copy to the device.
    Piece &fill(const std::byte *from, size_t rows, size_t row_bytes, size_t stride) {
        const size_t bytes = rows * row_bytes;
        Piece &piece = pieces_[next_++ % pieces_.size()];
        if (piece.used) piece.done.wait();
        piece.used = true;
        if (stride == row_bytes)
            read(piece.pinned.data(), from, bytes);
        else
            read_rows(piece.pinned.data(), from, rows, row_bytes, stride);
        stream_.copy_to_device(piece.staging.data(), piece.pinned.data(), bytes);
        done_ += bytes;
        if (progress_ && !progress_(done_, all_))
            throw BackendError(BackendError::Kind::Cancelled, "loading the model was interrupted");
        return piece;
    }

    // Reads from the mapped file with all reader threads: a single one page-faults at a
    // fraction of the bus's rate.
    void read(std::byte *to, const std::byte *from, size_t bytes) {
        const auto slices = static_cast<int64_t>((bytes + kSliceBytes - 1) / kSliceBytes);
        readers_->run([&](int thread) noexcept {
            readers_->for_each(thread, slices, [&](int64_t slice) {
                const size_t at = static_cast<size_t>(slice) * kSliceBytes;
                std::memcpy(to + at, from + at, std::min(kSliceBytes, bytes - at));
            });
        });
    }

    void read_rows(std::byte *to, const std::byte *from, size_t rows, size_t row_bytes, size_t stride) {
        readers_->run([&](int thread) noexcept {
            readers_->for_ranges(thread, static_cast<int64_t>(rows), [&](int64_t begin, int64_t end) {
                for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row)
                    std::memcpy(to + row * row_bytes, from + row * stride, row_bytes);
            });
        });
    }

    size_t bytes_, all_, done_ = 0;
    const LoadProgress &progress_;
    std::unique_ptr<cpu::Pool> readers_;
    std::array<Piece, kPieces> pieces_;
    DeviceMemory exponents_;  // of the current piece: pieces are processed in stream order
    DeviceMemory tiles_;      // of a matrix on its way back to host memory, likewise
    size_t next_ = 0;
    Stream stream_;  // destroyed first: no work is in flight when the memory is freed
};

}  // namespace

size_t matrix_tile_bytes(const Weight &w) {
    return static_cast<size_t>(tiled_bytes(tile_format(w.type), w.rows, w.cols));
}

size_t weight_memory(const Program &program, const Plan &plan) {
    size_t bytes = 0;
    for (size_t i = 0; i < program.weights.size(); ++i)
        bytes += device_bytes(program.weights[i], plan.uses[i], plan.places[i]);
    return bytes;
}

size_t host_weight_memory(const Program &program, const Plan &plan) {
    size_t bytes = 0;
    for (size_t i = 0; i < program.weights.size(); ++i)
        bytes += host_bytes(program.weights[i], plan.places[i]);
    return bytes;
}

DeviceWeights::DeviceWeights(const Program &program, const Plan &plan, const LoadProgress &progress)
    : memory_(std::max<size_t>(weight_memory(program, plan), 1), "weights"),
      at_(program.weights.size(), nullptr),
      host_(program.weights.size()) {
    size_t all = 0;
    for (size_t i = 0; i < program.weights.size(); ++i)
        if (plan.uses[i] != WeightUse::None) all += program.weights[i].bytes();
    const size_t piece = piece_bytes(program);
    Uploader uploader(piece, all, exponent_rows(program, plan, piece), progress);
    std::byte *to = memory_.data();
    for (size_t i = 0; i < program.weights.size(); ++i) {
        const Weight &w = program.weights[i];
        if (plan.uses[i] == WeightUse::None) continue;
        const size_t bytes = device_bytes(w, plan.uses[i], plan.places[i]);
        name_region(to, bytes, w.name.c_str(), Region::Weights);
        if (const size_t host = host_bytes(w, plan.places[i]); host > 0) {
            host_[i] = PinnedMemory(host);
            uploader.tiles_to_host(w, host_[i].data());
        } else if (plan.uses[i] == WeightUse::Tiles) {
            uploader.tiles(w, to);
        } else {
            uploader.floats(w, to);
        }
        at_[i] = to;
        to += bytes;
    }
    uploader.finish();
}

}  // namespace runnel::kernels::cuda
