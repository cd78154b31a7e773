// GPTQ on random matrices and inputs: against the algorithm of the paper in double precision, against rounding without
// feedback, and against the search with importance.
#include "engine/quantize/gptq.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "engine/quantize/mix.h"
#include "gguf/block_grid.h"
#include "gguf/quantize.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::quantize;
using namespace runnel::testing;
using gguf::Type;

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Bytes = std::vector<std::byte>;

struct Problem {
    size_t rows, columns;
    Floats weights;  // [rows][columns]
    Hessian hessian;
    Doubles h;  // the same in double precision, [columns][columns]

    Problem(size_t r, size_t c) : rows(r), columns(c), hessian(static_cast<int64_t>(c)), h(c * c) {}
};

// Adds factor * row[0 .. n). (Pointers: test cases are compiled without optimization, where vectors are slow.)
void add_scaled(double *sum, double factor, const double *row, size_t n) {
    for (const double *end = row + n; row != end;) *sum++ += factor * *row++;
}

double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (const double *end = a + n; a != end;) sum += *a++ * *b++;
    return sum;
}

// Inputs are correlated, as in models: sums of a few random directions and noise.
Problem random_problem(size_t rows, size_t columns, size_t tokens, Random &random, int threads = 1) {
    Problem problem(rows, columns);
    for (size_t i = 0; i < rows * columns; ++i) problem.weights.push_back(0.05f * random.normal());
    const size_t directions = 1 + columns / 4;
    Floats basis(directions * columns), x(columns);
    for (float &value : basis) value = random.normal();
    for (size_t t = 0; t < tokens; ++t) {
        for (float &value : x) value = 0.3f * random.normal();
        for (size_t d = 0; d < directions; ++d) {
            const float factor = random.normal();
            for (size_t i = 0; i < columns; ++i) x[i] += factor * basis[d * columns + i];
        }
        problem.hessian.add(x, threads);
        const Doubles exact(x.begin(), x.end());
        for (size_t i = 0; i < columns; ++i)
            add_scaled(&problem.h[i * columns + i], exact[i], &exact[i], columns - i);
    }
    for (size_t i = 0; i < columns; ++i)
        for (size_t k = 0; k < i; ++k) problem.h[i * columns + k] = problem.h[k * columns + i];
    problem.hessian.finish(threads);
    return problem;
}

std::vector<Feedback> feedback_for(const Hessian &hessian, int threads = 1) {
    std::vector<Feedback> result;
    for (size_t b = 0; b < hessian.bands().size(); ++b) {
        auto feedback = feedback_of(hessian, b, threads);
        REQUIRE(feedback);
        result.push_back(std::move(*feedback));
    }
    return result;
}

Bytes blocks_of(Type type, const Problem &problem, std::span<const Feedback> feedback, int threads = 1) {
    Bytes blocks(problem.rows * gguf::row_bytes(type, static_cast<int64_t>(problem.columns)));
    const auto read = [&](int64_t row, std::span<float> values) {
        std::copy_n(&problem.weights[static_cast<size_t>(row) * problem.columns], problem.columns,
                    values.begin());
    };
    gptq(type, static_cast<int64_t>(problem.rows), feedback, read, threads, "tensor x", blocks.data());
    return blocks;
}

Floats decoded(Type type, const Bytes &blocks, const Problem &problem) {
    Floats values(problem.rows * problem.columns);
    gguf::dequantize_row(type, blocks.data(), values.data(), static_cast<int64_t>(values.size()));
    return values;
}

// tr((W - W') H (W - W')^T), the squared error of the outputs over all inputs.
double loss(const Problem &problem, const Floats &values) {
    const size_t n = problem.columns;
    Doubles error(n);
    double sum = 0;
    for (size_t r = 0; r < problem.rows; ++r) {
        for (size_t i = 0; i < n; ++i)
            error[i] = double{problem.weights[r * n + i]} - double{values[r * n + i]};
        for (size_t i = 0; i < n; ++i) sum += error[i] * dot(&problem.h[i * n], error.data(), n);
    }
    return sum;
}

// The grids of all blocks of a matrix.
std::vector<gguf::BlockGrid> grids_of(Type type, const Bytes &blocks) {
    std::vector<gguf::BlockGrid> grids;
    for (size_t at = 0; at < blocks.size(); at += gguf::traits(type).block_bytes)
        grids.push_back(gguf::grid_of(type, blocks.data() + at));
    return grids;
}

// The nearest of all levels for weight i of the matrix.
float nearest(const std::vector<gguf::BlockGrid> &grids, Type type, size_t i, double x) {
    const size_t size = gguf::traits(type).block_size;
    const gguf::BlockGrid &grid = grids[i / size];
    float best = grid.value(i % size, 0);
    for (size_t q = 1; q < grid.levels.size(); ++q)
        if (const float value = grid.value(i % size, q);
            std::fabs(x - double{value}) < std::fabs(x - double{best}))
            best = value;
    return best;
}

Floats rounded(const Problem &problem, const std::vector<gguf::BlockGrid> &grids, Type type) {
    Floats values;
    for (size_t i = 0; i < problem.weights.size(); ++i)
        values.push_back(nearest(grids, type, i, double{problem.weights[i]}));
    return values;
}

// The inverse of a symmetric positive definite matrix by Gauss and Jordan.
Doubles inverse(Doubles h, size_t n) {
    Doubles result(n * n);
    for (size_t i = 0; i < n; ++i) result[i * n + i] = 1;
    for (size_t p = 0; p < n; ++p) {
        const double pivot = h[p * n + p];
        for (size_t k = 0; k < n; ++k) h[p * n + k] /= pivot, result[p * n + k] /= pivot;
        for (size_t i = 0; i < n; ++i) {
            const double factor = h[i * n + p];
            if (i == p) continue;
            add_scaled(&h[i * n], -factor, &h[p * n], n);
            add_scaled(&result[i * n], -factor, &result[p * n], n);
        }
    }
    return result;
}

// Algorithm 1 of the paper, column by column: the error of a column over the diagonal of the inverse Hessian of the
// columns not rounded yet is subtracted from these columns; then the column leaves that inverse.
Floats reference(const Problem &problem, const std::vector<gguf::BlockGrid> &grids, Type type) {
    const size_t n = problem.columns;
    Doubles h = problem.h;
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += h[i * n + i] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) h[i * n + i] += 0.01 * mean;
    Doubles inv = inverse(h, n), w(problem.weights.begin(), problem.weights.end());
    Floats values(w.size());
    for (size_t j = 0; j < n; ++j) {
        for (size_t r = 0; r < problem.rows; ++r) {
            const size_t at = r * n + j;
            values[at] = nearest(grids, type, at, w[at]);
            const double error = (w[at] - double{values[at]}) / inv[j * n + j];
            add_scaled(&w[r * n + j], -error, &inv[j * n + j], n - j);
        }
        const Doubles row(inv.begin() + static_cast<std::ptrdiff_t>(j * n),
                          inv.begin() + static_cast<std::ptrdiff_t>((j + 1) * n));
        for (size_t i = 0; i < n; ++i) add_scaled(&inv[i * n], -row[i] / row[j], row.data(), n);
    }
    return values;
}

constexpr Type kTypes[] = {Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0,   Type::Q2_K,
                           Type::Q3_K, Type::Q4_K, Type::Q5_K, Type::Q6_K, Type::IQ4_NL, Type::IQ4_XS};

}  // namespace

TEST_CASE("gptq: rounds as the paper's algorithm in double precision does with the same scales") {
    for (uint64_t seed = 0; seed < 3; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        for (const Type type : {Type::Q4_0, Type::Q4_1, Type::IQ4_NL, Type::Q3_K}) {
            CAPTURE(gguf::traits(type).name);
            const size_t size = gguf::traits(type).block_size;
            const size_t columns = size * (size == 32 ? 1 + random.below(10) : 1 + random.below(2));
            const Problem problem = random_problem(12, columns, 2 * columns, random);
            const Bytes blocks = blocks_of(type, problem, feedback_for(problem.hessian));
            const Floats values = decoded(type, blocks, problem),
                         expected = reference(problem, grids_of(type, blocks), type);
            size_t same = 0;
            for (size_t r = 0; r < problem.rows; ++r)
                same +=
                    std::equal(&values[r * columns], &values[r * columns] + columns, &expected[r * columns]);
            // A weight halfway between two levels may fall to either side, and changes the rest of its row.
            CHECK(same + 1 >= problem.rows);
        }
    }
}

TEST_CASE(
    "gptq: a smaller output error than rounding to the same levels, and than the search with importance") {
    for (uint64_t seed = 0; seed < 2; ++seed) {
        CAPTURE(seed);
        Random random(100 + seed);
        for (const Type type : kTypes) {
            CAPTURE(gguf::traits(type).name);
            const size_t size = gguf::traits(type).block_size;
            const size_t columns = size == 32 ? 32 * (2 + random.below(12)) : 256 * (1 + random.below(2));
            const Problem problem = random_problem(1 + random.below(40), columns, 2 * columns, random);
            const Bytes blocks = blocks_of(type, problem, feedback_for(problem.hessian));
            const double own = loss(problem, decoded(type, blocks, problem));
            CHECK(own < 0.9 * loss(problem, rounded(problem, grids_of(type, blocks), type)));
            Bytes searched(blocks.size());
            gguf::quantize_standard(type, problem.weights, static_cast<int64_t>(columns),
                                    problem.hessian.mean_squares(), searched.data());
            CHECK(own < 0.9 * loss(problem, decoded(type, searched, problem)));
        }
    }
}

TEST_CASE("gptq: inputs without correlation give the nearest levels of the format's own search") {
    Random random(5);
    for (const Type type : kTypes) {
        CAPTURE(gguf::traits(type).name);
        constexpr size_t kColumns = 512;
        Problem problem(20, kColumns);
        for (size_t i = 0; i < problem.rows * kColumns; ++i) problem.weights.push_back(random.normal());
        Floats x(kColumns);
        for (size_t i = 0; i < kColumns; ++i) {
            if (i % 100 == 3) continue;  // a column without any input
            x.assign(kColumns, 0.0f);
            x[i] = 1 + random.uniform();
            problem.hessian.add(x, 1);
        }
        problem.hessian.finish(1);
        const std::vector<Feedback> feedback = feedback_for(problem.hessian);
        const Bytes blocks = blocks_of(type, problem, feedback);
        const size_t size = gguf::traits(type).block_size, bytes = gguf::traits(type).block_bytes;
        for (size_t b = 0; b < blocks.size() / bytes; ++b) {
            const std::span<const float> weights = std::span(problem.weights).subspan(b * size, size);
            Bytes block(bytes);
            gguf::quantize_standard(type, weights, static_cast<int64_t>(size),
                                    std::span(feedback[0].diagonal).subspan(b * size % kColumns, size),
                                    block.data());
            const gguf::BlockGrid grid = gguf::grid_of(type, block.data());
            std::vector<uint8_t> levels(size);
            for (size_t i = 0; i < size; ++i) levels[i] = static_cast<uint8_t>(grid.nearest(i, weights[i]));
            gguf::set_levels(type, levels, block.data());
            REQUIRE(std::memcmp(block.data(), blocks.data() + b * bytes, bytes) == 0);
        }
    }
}

TEST_CASE("gptq: the same sums and bytes for any number of threads") {
    for (const Type type : {Type::Q4_0, Type::Q4_K}) {
        std::map<int, Bytes> blocks;
        std::map<int, Floats> sums;
        for (const int threads : {1, 2, 5}) {
            Random random(9);
            const Problem problem = random_problem(67, 256, 300, random, threads);
            sums[threads] = Floats(problem.hessian.band(0).begin(), problem.hessian.band(0).end());
            blocks[threads] = blocks_of(type, problem, feedback_for(problem.hessian, threads), threads);
        }
        CHECK(sums[1] == sums[2]);
        CHECK(sums[1] == sums[5]);
        CHECK(blocks[1] == blocks[2]);
        CHECK(blocks[1] == blocks[5]);
    }
}

TEST_CASE("gptq: bands of columns are rounded independently") {
    const std::vector<Band> bands = bands_of(2 * kBandColumns + 256);
    REQUIRE(bands.size() == 3);
    CHECK(bands[2].first == 2 * kBandColumns);
    CHECK(bands[2].size == 256);
    CHECK(bands_of(kMostColumns).size() == 1);
    CHECK(hessian_bytes(2 * kBandColumns + 256) ==
          4 * (2 * uint64_t{kBandColumns} * kBandColumns + uint64_t{256} * 256));
    Random random(11);
    const Problem left = random_problem(9, 64, 100, random), right = random_problem(9, 96, 150, random);
    Problem both(9, 160);
    for (size_t r = 0; r < 9; ++r) {
        both.weights.insert(both.weights.end(), &left.weights[r * 64], &left.weights[r * 64] + 64);
        both.weights.insert(both.weights.end(), &right.weights[r * 96], &right.weights[r * 96] + 96);
    }
    std::vector<Feedback> feedback = feedback_for(left.hessian), second = feedback_for(right.hessian);
    second[0].band.first = 64;
    feedback.push_back(second[0]);
    second[0].band.first = 0;
    const Floats all = decoded(Type::Q4_0, blocks_of(Type::Q4_0, both, feedback), both),
                 one = decoded(Type::Q4_0, blocks_of(Type::Q4_0, left, std::span(feedback).first(1)), left),
                 other = decoded(Type::Q4_0, blocks_of(Type::Q4_0, right, second), right);
    for (size_t r = 0; r < 9; ++r) {
        CHECK(std::equal(&all[r * 160], &all[r * 160] + 64, &one[r * 64]));
        CHECK(std::equal(&all[r * 160 + 64], &all[r * 160] + 160, &other[r * 96]));
    }
}

TEST_CASE("gptq: extreme inputs and weights") {
    Hessian none(64);
    none.finish(1);
    CHECK(feedback_of(none, 0, 1));  // without any input: no feedback
    CHECK(none.is_finite());
    Hessian one(64);  // far fewer rows than columns: the damping makes it definite
    one.add(Floats(64, 3.0f), 1);
    one.finish(1);
    CHECK(feedback_of(one, 0, 1));
    CHECK(one.mean_squares() == Floats(64, 9.0f));
    Hessian infinite(64);
    infinite.add(Floats(64, std::numeric_limits<float>::max()), 1);
    infinite.finish(1);
    CHECK_FALSE(infinite.is_finite());
    CHECK_FALSE(feedback_of(infinite, 0, 1));
    Random random(13);
    Problem problem = random_problem(3, 64, 100, random);
    const std::vector<Feedback> feedback = feedback_for(problem.hessian);
    for (const float large : {1e9f, 1e30f}) {
        problem.weights[64 + 5] = large;
        CHECK_THROWS_WITH_AS(blocks_of(Type::Q4_0, problem, feedback),
                             "tensor x: row 1 has values too large for q4_0: BF16 or F32 can hold them",
                             QuantizeError);
    }
}
