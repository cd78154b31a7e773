#include "engine/quantize/channel_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "engine/quantize/parallel.h"
#include "engine/quantize/rows.h"
#include "gguf/quantize.h"

namespace runnel::quantize {
namespace {

// Scales differ by at most this factor, so that scaled F16 values stay far from the ends of its range.
constexpr double kMostRatio = 1e4;
// Rows whose products are computed together: they share what is read of the sample.
constexpr size_t kTogether = 4;

// Sums over the even and the odd rows of the sample.
using Halves = std::array<double, 2>;

// The kept rows by column, [columns][width]: even ones, padded with zeros, then odd ones.
struct Columns {
    size_t half;  // floats of a half
    std::vector<float> values;

    explicit Columns(const InputSample &sample)
        : half((sample.kept() + 1) / 2), values(static_cast<size_t>(sample.columns()) * 2 * half) {
        for (size_t i = 0; i < sample.kept(); ++i) {
            const std::span<const float> row = sample.row(i);
            for (size_t c = 0; c < row.size(); ++c) values[(c * 2 + i % 2) * half + i / 2] = row[c];
        }
    }
    size_t width() const { return 2 * half; }

    // The squared products of `count` rows of weights with the sample.
    void squares(const std::vector<float> *rows, size_t count, std::vector<float> &sums, Halves *out) const {
        sums.assign(count * width(), 0.0f);
        for (size_t c = 0; c < rows[0].size(); ++c)
            for (size_t r = 0; r < count; ++r) {
                const float by = rows[r][c];
                const float *const from = &values[c * width()];
                float *const to = &sums[r * width()];
                for (size_t t = 0; t < width(); ++t) to[t] += by * from[t];
            }
        for (size_t r = 0; r < count; ++r)
            for (size_t h = 0; h < 2; ++h) {
                out[r][h] = 0;
                for (size_t t = 0; t < half; ++t) {
                    const double product = double{sums[r * width() + h * half + t]};
                    out[r][h] += product * product;
                }
            }
    }
};

class Search {
  public:
    Search(std::span<const ScaledMatrix> matrices, const InputSample &sample,
           std::span<const int32_t> channel_of, int64_t channels, int threads,
           const std::function<void()> &between)
        : matrices_(matrices),
          columns_(sample),
          channel_of_(channel_of),
          threads_(threads),
          between_(between),
          magnitudes_(static_cast<size_t>(channels)) {
        const std::vector<double> of_columns = sample.mean_magnitudes();
        std::vector<double> count(magnitudes_.size());
        for (size_t c = 0; c < of_columns.size(); ++c) {
            const auto channel = static_cast<size_t>(channel_of[c]);
            magnitudes_[channel] += of_columns[c], ++count[channel];
        }
        for (size_t i = 0; i < magnitudes_.size(); ++i) magnitudes_[i] /= std::max(1.0, count[i]);
        const auto number = static_cast<int64_t>(matrices.size());
        for (const ScaledMatrix &matrix : matrices) {
            const int64_t count_of_rows = std::clamp<int64_t>(kScaleRows / number, 1, matrix.rows);
            std::vector<int64_t> rows;
            for (int64_t i = 0; i < count_of_rows; ++i)
                rows.push_back(matrix.first + i * matrix.rows / count_of_rows);
            rows_.push_back(std::move(rows));
        }
        for (size_t m = 0; m < matrices_.size(); ++m) energy_.push_back(sum(m, nullptr));
    }

    ChannelScales run() {
        ChannelScales result;
        if (std::ranges::all_of(magnitudes_, [](double m) { return m == 0; })) return result;
        const Halves none = error(0);
        result.before = result.after = none[1];
        int best = 0;  // in steps of 0.05
        for (int k = 2; k <= 18; k += 2)
            if (error(k)[0] < error(best)[0]) best = k;
        const int around = best;
        for (const int k : {around - 1, around + 1})
            if (k > 0 && error(k)[0] < error(best)[0]) best = k;
        if (best == 0 || !(error(best)[1] < none[1])) return result;
        result.after = error(best)[1];
        result.exponent = 0.05 * best;
        result.scales = scales(best);
        return result;
    }

  private:
    std::vector<float> scales(int k) const {
        std::vector<double> powers;
        for (const double m : magnitudes_) powers.push_back(std::pow(m, 0.05 * k));
        const double most = *std::ranges::max_element(powers);
        for (double &power : powers) power = std::max(power, most / kMostRatio);
        const double middle = std::sqrt(most * *std::ranges::min_element(powers));
        std::vector<float> result;
        for (const double power : powers) result.push_back(static_cast<float>(power / middle));
        return result;
    }

    const Halves &error(int k) {
        const auto found = errors_.find(k);
        if (found != errors_.end()) return found->second;
        const std::vector<float> by = scales(k);
        std::vector<float> of_columns;
        for (const int32_t channel : channel_of_) of_columns.push_back(by[static_cast<size_t>(channel)]);
        Halves total{};
        for (size_t m = 0; m < matrices_.size(); ++m) {
            if (!gguf::traits(matrices_[m].type).quantized) continue;
            const Halves of_matrix = sum(m, &of_columns);
            for (size_t h = 0; h < 2; ++h)
                if (energy_[m][h] > 0) total[h] += of_matrix[h] / energy_[m][h];
        }
        return errors_.emplace(k, total).first->second;
    }

    // The squared products of a matrix's rows, or, with scales, of their errors.
    Halves sum(size_t m, const std::vector<float> *by) {
        const std::vector<int64_t> &rows = rows_[m];
        std::vector<Halves> of_rows(rows.size());
        in_parallel(threads_, static_cast<int64_t>(rows.size()), kTogether, [&](int64_t begin, int64_t end) {
            std::array<std::vector<float>, kTogether> values;
            std::vector<float> sums;
            const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
            for (size_t r = 0; r < count; ++r) values[r] = row_of(matrices_[m], rows[first + r], by);
            columns_.squares(values.data(), count, sums, &of_rows[first]);
        });
        between_();
        Halves total{};
        for (const Halves &one : of_rows)
            for (size_t h = 0; h < 2; ++h) total[h] += one[h];
        return total;
    }

    // A row's weights, or, with scales, the errors of the quantized weights.
    static std::vector<float> row_of(const ScaledMatrix &matrix, int64_t row, const std::vector<float> *by) {
        const auto size = static_cast<size_t>(matrix.tensor->shape[0]);
        std::vector<float> values(size);
        read_row(*matrix.tensor, row, values);
        if (!by) return values;
        std::vector<float> scaled(size), importance(matrix.importance.begin(), matrix.importance.end());
        for (size_t i = 0; i < size; ++i) scaled[i] = values[i] * (*by)[i];
        for (size_t i = 0; i < importance.size(); ++i) importance[i] /= (*by)[i] * (*by)[i];
        std::vector<std::byte> blocks(gguf::row_bytes(matrix.type, static_cast<int64_t>(size)));
        encode_row(Method::Standard, matrix.type, scaled, importance, blocks.data());
        gguf::dequantize_row(matrix.type, blocks.data(), scaled.data(), static_cast<int64_t>(size));
        for (size_t i = 0; i < size; ++i) values[i] -= scaled[i] / (*by)[i];
        return values;
    }

    std::span<const ScaledMatrix> matrices_;
    Columns columns_;
    std::span<const int32_t> channel_of_;
    int threads_;
    const std::function<void()> &between_;
    std::vector<double> magnitudes_;          // by channel
    std::vector<std::vector<int64_t>> rows_;  // of the tensors; by matrix
    std::vector<Halves> energy_;              // by matrix
    std::map<int, Halves> errors_;            // by the exponent in steps of 0.05
};

}  // namespace

ChannelScales choose_scales(std::span<const ScaledMatrix> matrices, const InputSample &sample,
                            std::span<const int32_t> channel_of, int64_t channels, int threads,
                            const std::function<void()> &between) {
    return Search(matrices, sample, channel_of, channels, threads, between).run();
}

}  // namespace runnel::quantize
