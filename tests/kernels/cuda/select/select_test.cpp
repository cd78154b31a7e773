#include "kernels/cuda/select/select.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using runnel::kernels::ExpSum, runnel::kernels::TopLogit;
using simt::Buffer;

namespace {

using Mask = std::vector<bool>;

struct Logits {
    int32_t rows, vocab;
    std::vector<float> values;
    std::vector<Mask> masks = {};  // of each row; an empty one allows all. Empty: no masks
    float at(int32_t row, int32_t token) const {
        return values[static_cast<size_t>(row) * static_cast<size_t>(vocab) + static_cast<size_t>(token)];
    }
};

// Coarse values, so that many are equal.
Logits random_logits(testing::Random &random, int32_t rows, int32_t vocab, bool coarse) {
    Logits l{rows, vocab, {}};
    for (int64_t i = 0; i < int64_t{rows} * vocab; ++i) {
        const float x = random.normal() * 4;
        l.values.push_back(coarse ? std::rint(x) * 0.5f : x);
    }
    return l;
}

bool is_allowed(const Logits &l, int32_t row, int32_t token) {
    const Mask *mask = l.masks.empty() ? nullptr : &l.masks[static_cast<size_t>(row)];
    return !mask || mask->empty() || (*mask)[static_cast<size_t>(token)];
}

// The row with -infinity for the tokens outside its mask.
float masked_logit(const Logits &l, int32_t row, int32_t token) {
    return is_allowed(l, row, token) ? l.at(row, token) : -std::numeric_limits<float>::infinity();
}

// Device memory of the masks, those of the last rows first. What lies beyond the vocabulary is wrong on purpose.
class DeviceMasks {
  public:
    DeviceMasks(Stream &stream, const Logits &l)
        : is_null_(l.masks.empty()),
          stride_((l.vocab + 31) / 32 + 3),
          bits_(stream, bits_of(l, stride_), "mask bits"),
          numbers_(stream, numbers_of(l), "mask numbers") {}
    RowMasks get() const {
        if (is_null_) return {nullptr, nullptr, 0};
        return {bits_.data(), numbers_.data(), stride_};
    }

  private:
    static std::vector<uint32_t> bits_of(const Logits &l, int32_t stride) {
        std::vector<uint32_t> words(static_cast<size_t>(l.rows * stride), 0x5a5a5a5au);
        const std::vector<int32_t> numbers = numbers_of(l);
        for (int32_t row = 0; row < l.rows; ++row) {
            const int32_t number = numbers[static_cast<size_t>(row)];
            for (int32_t token = 0; number > 0 && token < l.vocab; ++token) {
                uint32_t &word = words[static_cast<size_t>((number - 1) * stride + token / 32)];
                const uint32_t bit = 1u << token % 32;
                word = is_allowed(l, row, token) ? word | bit : word & ~bit;
            }
        }
        return words;
    }
    static std::vector<int32_t> numbers_of(const Logits &l) {
        std::vector<int32_t> all(static_cast<size_t>(l.rows), 0);
        int32_t used = 0;
        for (size_t row = l.masks.size(); row-- > 0;)
            if (!l.masks[row].empty()) all[row] = ++used;
        return all;
    }

    bool is_null_;
    int32_t stride_;
    Buffer<uint32_t> bits_;
    Buffer<int32_t> numbers_;
};

// The tokens of a row in the order of select.h.
std::vector<int32_t> sorted(const Logits &l, int32_t row) {
    std::vector<int32_t> tokens(static_cast<size_t>(l.vocab));
    for (int32_t i = 0; i < l.vocab; ++i) tokens[static_cast<size_t>(i)] = i;
    std::stable_sort(tokens.begin(), tokens.end(),
                     [&](int32_t a, int32_t b) { return masked_logit(l, row, a) > masked_logit(l, row, b); });
    return tokens;
}

std::vector<int32_t> argmax(const Logits &l, int32_t blocks_per_row, int replays = 1) {
    Stream stream;
    const Buffer<float> logits(stream, l.values, "logits");
    const auto rows = static_cast<size_t>(l.rows);
    const Buffer<uint64_t> best(stream, std::vector<uint64_t>(rows, 0), "best");
    const Buffer<uint32_t> counters(stream, std::vector<uint32_t>(rows, 0), "counters");
    const DeviceMasks masks(stream, l);
    const PinnedMemory first(rows * sizeof(TopLogit));
    for (int i = 0; i < replays; ++i)
        simt::run_kernel(stream, argmax_kernel(),
                         {static_cast<uint32_t>(l.rows * blocks_per_row), kArgmaxShared},
                         {logits.data(), l.vocab, l.vocab, blocks_per_row, best.data(), counters.data(),
                          first.as<TopLogit>(), masks.get()});
    stream.wait();
    std::vector<int32_t> tokens;
    for (int32_t row = 0; row < l.rows; ++row) {
        const TopLogit c = first.as<TopLogit>()[row];
        const float expected = std::isfinite(l.at(row, c.token)) ? masked_logit(l, row, c.token)
                                                                 : std::numeric_limits<float>::quiet_NaN();
        CHECK(std::memcmp(&c.logit, &expected, 4) == 0);
        tokens.push_back(c.token);
    }
    return tokens;
}

struct Chosen {
    std::vector<TopLogit> candidates;
    std::vector<ExpSum> sums;
};

Chosen candidates(const Logits &l, int32_t k) {
    Stream stream;
    const Buffer<float> logits(stream, l.values, "logits");
    const int32_t chunks = (l.vocab + kSelectChunk - 1) / kSelectChunk;
    const auto rows = static_cast<size_t>(l.rows), parts = rows * static_cast<size_t>(chunks);
    const Buffer<uint64_t> keys(stream, parts * static_cast<size_t>(k), "keys");
    const Buffer<ExpSum> partial(stream, parts, "partial"), sums(stream, rows, "sums");
    const Buffer<TopLogit> out(stream, rows * static_cast<size_t>(k), "candidates");
    stream.fill(out.data(), 0, rows * static_cast<size_t>(k) * sizeof(TopLogit));
    const DeviceMasks masks(stream, l);
    const CandidateParams params{logits.data(), l.vocab,        l.vocab,    chunks,      k,
                                 keys.data(),   partial.data(), out.data(), sums.data(), masks.get()};
    simt::run_kernel(stream, candidate_chunk_kernel(), {static_cast<uint32_t>(parts), candidate_shared()},
                     params);
    simt::run_kernel(stream, candidate_row_kernel(), {static_cast<uint32_t>(l.rows), candidate_shared()},
                     params);
    return {out.read(), sums.read()};
}

}  // namespace

TEST_CASE("cuda select: argmax takes the first of the largest, whatever the grid") {
    testing::Random random(21);
    for (const int32_t vocab : {1, 31, 1000, 5003})
        for (const bool coarse : {false, true}) {
            CAPTURE(vocab);
            const Logits l = random_logits(random, 3, vocab, coarse);
            for (const int32_t blocks : {1, 2, 7}) {
                const auto tokens = argmax(l, blocks, 2);
                for (int32_t row = 0; row < 3; ++row)
                    CHECK(tokens[static_cast<size_t>(row)] == sorted(l, row)[0]);
            }
        }
}

TEST_CASE("cuda select: zeros of both signs are equal, and values that are not finite come first") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    CHECK(argmax({1, 4, {-0.0f, 0.0f, -1, 0.0f}}, 1)[0] == 0);
    CHECK(argmax({1, 3, {-1, -0.0f, 0.0f}}, 1)[0] == 1);
    for (const float odd : {nan, -nan, inf, -inf}) {
        CHECK(argmax({1, 4, {7, 3e38f, odd, -5}}, 2)[0] == 2);
        for (const int32_t k : {1, 3})
            CHECK(std::isnan(candidates({1, 4, {7, 3e38f, odd, -5}}, k).candidates[0].logit));
    }
    CHECK(argmax({1, 2, {nan, inf}}, 1)[0] == 0);
    CHECK(argmax({1, 2, {-3.4028235e38f, -3.4028235e38f}}, 1)[0] == 0);
}

TEST_CASE("cuda select: candidates are the sorted head of the row, and the sum is that of the row") {
    testing::Random random(22);
    for (const int32_t vocab : {1, 40, 256, 4096, 9001})
        for (const int32_t k : {1, 5, 256})
            for (const bool coarse : {false, true}) {
                CAPTURE(vocab);
                CAPTURE(k);
                const Logits l = random_logits(random, 2, vocab, coarse);
                const Chosen chosen = candidates(l, k);
                for (int32_t row = 0; row < 2; ++row) {
                    const auto order = sorted(l, row);
                    for (int32_t i = 0; i < std::min(k, vocab); ++i) {
                        const TopLogit c = chosen.candidates[static_cast<size_t>(row * k + i)];
                        REQUIRE(c.token == order[static_cast<size_t>(i)]);
                        REQUIRE(c.logit == l.at(row, c.token));
                    }
                    const float *first = l.values.data() + int64_t{row} * vocab;
                    const double exact =
                        reference::log_sum_exp(reference::to_row({first, static_cast<size_t>(vocab)}));
                    const float largest = l.at(row, order[0]);
                    const double sum{chosen.sums[static_cast<size_t>(row)].relative_to(largest)};
                    CHECK(double{largest} + std::log(sum) == doctest::Approx(exact).epsilon(1e-6));
                }
            }
}

namespace {

// Masks of all densities, one token included; some rows have none.
void add_masks(testing::Random &random, Logits &l) {
    for (int32_t row = 0; row < l.rows; ++row) {
        Mask mask;
        const uint64_t kind = random.below(5);
        if (kind > 0) mask.resize(static_cast<size_t>(l.vocab));
        for (size_t t = 0; t < mask.size(); ++t) mask[t] = random.below(kind * kind * kind) == 0;
        if (!mask.empty()) mask[random.below(mask.size())] = true;
        l.masks.push_back(std::move(mask));
    }
}

}  // namespace

TEST_CASE("cuda select: rows with masks, beside rows without, give what rows of -infinity would") {
    testing::Random random(23);
    for (const int32_t vocab : {1, 31, 500, 4096, 9001})
        for (const int32_t k : {1, 7, 256}) {
            CAPTURE(vocab);
            CAPTURE(k);
            Logits l = random_logits(random, 4, vocab, k != 7);
            add_masks(random, l);
            const auto first = argmax(l, 3, 2);
            const Chosen chosen = candidates(l, k);
            for (int32_t row = 0; row < l.rows; ++row) {
                CAPTURE(row);
                const auto order = sorted(l, row);
                CHECK(first[static_cast<size_t>(row)] == order[0]);
                std::vector<float> allowed;
                for (int32_t t = 0; t < vocab; ++t)
                    if (is_allowed(l, row, t)) allowed.push_back(l.at(row, t));
                for (int32_t i = 0; i < std::min(k, vocab); ++i) {
                    const TopLogit c = chosen.candidates[static_cast<size_t>(row * k + i)];
                    REQUIRE(c.token == order[static_cast<size_t>(i)]);
                    REQUIRE(c.logit == masked_logit(l, row, c.token));
                    CHECK((c.logit > -1e30f) == (i < static_cast<int32_t>(allowed.size())));
                }
                const float largest = l.at(row, order[0]);
                const double sum{chosen.sums[static_cast<size_t>(row)].relative_to(largest)};
                CHECK(double{largest} + std::log(sum) ==
                      doctest::Approx(reference::log_sum_exp(reference::to_row(allowed))).epsilon(1e-6));
            }
        }
}

TEST_CASE("cuda select: a mask hides no logit that is not finite, and a mask of nothing gives -infinity") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    for (const float odd : {nan, inf, -inf}) {
        const Logits l{1, 4, {7, 3, odd, -5}, {{true, true, false, true}}};
        CHECK(argmax(l, 2)[0] == 2);
        CHECK(std::isnan(candidates(l, 3).candidates[0].logit));
    }
    const Logits none{2, 3, {1, 2, 3, 1, 2, 3}, {{false, false, false}, {}}};
    CHECK(argmax(none, 1) == std::vector<int32_t>{0, 2});
    const Chosen chosen = candidates(none, 3);
    for (size_t i = 0; i < 3; ++i) {
        CHECK(chosen.candidates[i].token == static_cast<int32_t>(i));
        CHECK(chosen.candidates[i].logit == -inf);
        CHECK(chosen.candidates[3 + i].token == 2 - static_cast<int32_t>(i));
    }
}
