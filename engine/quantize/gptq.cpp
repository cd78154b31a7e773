#include "engine/quantize/gptq.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/quantize/mix.h"
#include "engine/quantize/parallel.h"
#include "engine/quantize/rows.h"
#include "gguf/block_grid.h"
#include "gguf/quantize.h"

namespace runnel::quantize {
namespace {

// Rows that are treated together: they share what is read of the feedback matrix, and their blocks are searched at once.
constexpr size_t kRows = 16;
// Columns: the feedback of earlier panels is added when a panel begins.
constexpr size_t kPanel = gguf::kSuperBlock;

// Some rows of a matrix.
class Rows {
  public:
    Rows(gguf::Type type, int64_t first, size_t count, size_t columns, const ReadRow &read, std::byte *blocks)
        : type_(type),
          count_(count),
          columns_(columns),
          block_(gguf::traits(type).block_size),
          row_bytes_(gguf::row_bytes(type, static_cast<int64_t>(columns))),
          weights_(count * columns),
          errors_(count * columns),
          blocks_(blocks) {
        for (size_t r = 0; r < count; ++r)
            read(first + static_cast<int64_t>(r), std::span(weights_).subspan(r * columns, columns));
    }

    void round(const Feedback &feedback) {
        const auto first = static_cast<size_t>(feedback.band.first),
                   size = static_cast<size_t>(feedback.band.size);
        for (size_t at = 0; at < size; at += kPanel) {
            const size_t width = std::min(kPanel, size - at);
            for (size_t r = 0; r < count_; ++r)
                std::copy_n(&weights_[r * columns_ + first + at], width, wanted(r));
            for (size_t j = 0; j < at; ++j) feed_back(feedback, j, at, at, width);
            for (size_t in = 0; in < width; in += block_) {
                fix_scales(first + at + in, in, std::span(feedback.diagonal).subspan(at + in, block_));
                for (size_t k = in; k < in + block_; ++k) {
                    for (size_t r = 0; r < count_; ++r) round_one(r, k, first + at + k, k - in);
                    feed_back(feedback, at + k, at, at + k + 1, width);
                }
                write_levels(first + at + in);
            }
        }
    }

    // False if the type cannot hold a value of a row. Its index is set.
    bool all_fit(size_t &row) const {
        for (row = 0; row < count_; ++row)
            for (size_t k = 0; k < columns_; ++k)
                if (const size_t at = row * columns_ + k;
                    !std::isfinite(errors_[at]) || std::fabs(weights_[at]) >= kBeyondScales)
                    return false;
        return true;
    }

  private:
    float *wanted(size_t r) { return &wanted_[r * kPanel]; }
    std::byte *block(size_t r, size_t column) {
        return blocks_ + r * row_bytes_ + column / block_ * gguf::traits(type_).block_bytes;
    }

    // Adds the error of column j, times A, to the wanted weights of columns [from, panel + width).
    void feed_back(const Feedback &feedback, size_t j, size_t panel, size_t from, size_t width) {
        const auto first = static_cast<size_t>(feedback.band.first),
                   size = static_cast<size_t>(feedback.band.size);
        const float *const a = &feedback.a[j * size];
        for (size_t r = 0; r < count_; ++r) {
            const float error = errors_[r * columns_ + first + j];
            float *const to = wanted(r);
            for (size_t k = from; k < panel + width; ++k) to[k - panel] += error * a[k];
        }
    }

    // Encodes the block that begins at `column` (`in` the panel) and keeps its scales.
    void fix_scales(size_t column, size_t in, std::span<const float> importance) {
        // Super-blocks depend on their own values only, so several rows can be encoded as one.
        const size_t together = block_ == gguf::kSuperBlock ? count_ : 1;
        std::vector<float> values(together * block_), weights(together * block_);
        std::vector<std::byte> encoded(together * gguf::traits(type_).block_bytes);
        for (size_t r = 0; r < together; ++r) std::ranges::copy(importance, &weights[r * block_]);
        for (size_t r = 0; r < count_; r += together) {
            for (size_t i = 0; i < together; ++i)
                std::copy_n(wanted(r + i) + in, block_, &values[i * block_]);
            gguf::quantize_standard(type_, values, static_cast<int64_t>(values.size()), weights,
                                    encoded.data());
            for (size_t i = 0; i < together; ++i) {
                const size_t bytes = gguf::traits(type_).block_bytes;
                std::copy_n(&encoded[i * bytes], bytes, block(r + i, column));
                grids_[r + i] = gguf::grid_of(type_, block(r + i, column));
            }
        }
    }

    void round_one(size_t r, size_t in_panel, size_t column, size_t in_block) {
        const gguf::BlockGrid &grid = grids_[r];
        const size_t level = grid.nearest(in_block, wanted(r)[in_panel]);
        levels_[r * gguf::kSuperBlock + in_block] = static_cast<uint8_t>(level);
        const size_t at = r * columns_ + column;
        errors_[at] = weights_[at] - grid.value(in_block, level);
    }

    void write_levels(size_t column) {
        for (size_t r = 0; r < count_; ++r)
            gguf::set_levels(type_, {&levels_[r * gguf::kSuperBlock], block_}, block(r, column));
    }

    gguf::Type type_;
    size_t count_, columns_, block_, row_bytes_;
    std::vector<float> weights_, errors_;  // [rows][columns]; error = weight - rounded
    std::byte *blocks_;
    std::array<float, kRows * kPanel> wanted_{};  // of the current panel: weights with feedback
    std::array<gguf::BlockGrid, kRows> grids_;
    std::array<uint8_t, kRows * gguf::kSuperBlock> levels_{};
};

}  // namespace

void gptq(gguf::Type type, int64_t rows, std::span<const Feedback> feedback, const ReadRow &read, int threads,
          const std::string &name, std::byte *blocks) {
    const int64_t columns = feedback.back().band.first + feedback.back().band.size;
    const size_t row_bytes = gguf::row_bytes(type, columns);
    in_parallel(threads, rows, kRows, [&](int64_t begin, int64_t end) {
        Rows some(type, begin, static_cast<size_t>(end - begin), static_cast<size_t>(columns), read,
                  blocks + static_cast<size_t>(begin) * row_bytes);
        for (const Feedback &band : feedback) some.round(band);
        size_t row = 0;
        if (!some.all_fit(row))
            throw QuantizeError(name + ": row " + std::to_string(begin + static_cast<int64_t>(row)) +
                                " has values too large for " + std::string(gguf::traits(type).name) +
                                ": BF16 or F32 can hold them");
    });
}

}  // namespace runnel::quantize
