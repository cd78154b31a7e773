// Tokens that several devices select, each from its part of the vocabulary (kernels/tensor_logits.h), are those of one device.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "kernels/row_selection.h"
#include "kernels/steps.h"
#include "kernels/tensor_backend.h"
#include "kernels/tensor_program.h"
#include "tests/simt/nccl.h"
#include "tests/simt/simt.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/program_runs.h"
#include "tests/support/random.h"
#include "tests/support/split_ranks.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels;
using tests::Gpus;
using tests::kBlocks;
using tests::kMaxTokens;
using tests::make_ranks;
using tests::MakeDevice;
using tests::one_cpu;
using tests::one_gpu;
using tests::random_tokens;
using tests::Shares;
using tests::shares_of;
using tests::TinyProgram;
using tests::TinyShape;

namespace {

using RowMaskBits = std::vector<std::vector<uint64_t>>;  // of each row; an empty one allows all

TinyShape selecting_shape(int64_t vocab, gguf::Type type = gguf::Type::F32) {
    TinyShape shape{.layers = 1, .width = 32, .feed_forward = 32, .vocab = vocab, .type = type};
    shape.heads = 8, shape.kv_heads = 4;
    return shape;
}

// A program whose output matrix the test may change: some rows are equal, so their logits are.
class OutputRows {
  public:
    OutputRows(int64_t vocab, uint32_t seed, const std::set<int64_t> &equal = {})
        : tiny_(selecting_shape(vocab), seed), program_(tiny_.program()) {
        step_ = &std::get<Logits>(program_.steps.back());
        Weight &weight = program_.weights[static_cast<size_t>(step_->weight)];
        REQUIRE(weight.type == gguf::Type::F32);
        values_.resize(static_cast<size_t>(weight.rows * weight.cols));
        std::memcpy(values_.data(), weight.data, weight.bytes());
        weight.data = reinterpret_cast<const std::byte *>(values_.data());
        for (const int64_t token : equal) std::ranges::copy(row(*equal.begin()), row(token).begin());
    }
    std::span<float> row(int64_t token) {
        const size_t cols = values_.size() / static_cast<size_t>(program_.vocab);
        return std::span(values_).subspan(static_cast<size_t>(token) * cols, cols);
    }
    Logits &step() { return *step_; }
    const Program &program() const { return program_; }

  private:
    TinyProgram tiny_;
    Program program_;
    Logits *step_;
    std::vector<float> values_;
};

// Masks for some of the rows: dense ones, sparse ones, and ones of a single token.
RowMaskBits masks_of(testing::Random &random, size_t rows, int64_t vocab) {
    RowMaskBits masks(rows);
    for (std::vector<uint64_t> &mask : masks) {
        const uint64_t kind = random.below(4);
        if (kind == 0) continue;
        mask.resize(static_cast<size_t>((vocab + 63) / 64));
        const uint64_t always = random.below(static_cast<uint64_t>(vocab));
        for (uint64_t token = 0; token < static_cast<uint64_t>(vocab); ++token)
            if (token == always || (kind < 3 && random.below(kind * kind * 20) < 20))
                mask[token / 64] |= uint64_t{1} << token % 64;
    }
    return masks;
}

struct SelectedRows {
    std::vector<TopLogit> candidates;
    std::vector<ExpSum> sums;
};

// The first tokens of a sequence, of which the last `rows` have logits.
SelectedRows select_rows(Backend &backend, std::span<const int32_t> tokens, size_t rows, int32_t count,
                         const RowMaskBits &masks = {}) {
    std::vector<int32_t> positions(tokens.size()), logit_rows(rows);
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(logit_rows.begin(), logit_rows.end(), static_cast<int32_t>(tokens.size() - rows));
    const std::vector<BlockId> table = {1, 0};
    const SequenceSpan span{0, static_cast<int32_t>(tokens.size()), 0, {table}};
    const std::vector<TokenMask> spans(masks.begin(), masks.end());
    SelectedRows found{std::vector<TopLogit>(rows * static_cast<size_t>(count), TopLogit{-7, -7}),
                       std::vector<ExpSum>(rows)};
    REQUIRE(backend.execute({tokens, positions, {&span, 1}, logit_rows, nullptr, 0, spans}, count,
                            found.candidates, found.sums));
    return found;
}

void check_equal_rows(const SelectedRows &a, const SelectedRows &b) {
    REQUIRE(a.candidates.size() == b.candidates.size());
    CHECK(std::memcmp(a.candidates.data(), b.candidates.data(), a.candidates.size() * sizeof(TopLogit)) == 0);
    CHECK(a.sums == b.sums);
}

std::unique_ptr<Backend> ranks_over(MakeDevice make, const Shares &shares, const Program &program,
                                    MakeCommunicators communicators = communicate_in_process) {
    auto backend = make_tensor_backend(make_ranks(make, shares.size()), shares, {}, std::move(communicators));
    backend->load(program, {{kBlocks}}, kMaxTokens);
    return backend;
}

std::unique_ptr<Backend> alone_on(MakeDevice make, const Program &program) {
    auto backend = make(0);
    backend->load(program, {{kBlocks}}, kMaxTokens);
    return backend;
}

}  // namespace

TEST_CASE("tensor selection: two to seven GPUs select what one does, with masks, ties and many rows") {
    struct Case {
        size_t ranks;
        int64_t vocab;
        bool nccl;
    };
    testing::Random random(7);
    for (const auto &[ranks, vocab, nccl] : {Case{2, 131, false}, Case{3, 397, true}, Case{4, 203, true},
                                             Case{7, 131, true}, Case{2, 5003, true}}) {
        CAPTURE(ranks);
        CAPTURE(vocab);
        const Gpus gpus(static_cast<int>(ranks));
        std::optional<simt::WithNccl> installed;
        if (nccl) installed.emplace();
        // Equal logits on several devices.
        OutputRows output(vocab, 5, {9, 40, 77, 118, vocab - 1});
        output.step().softcap = 3, output.step().scale = 0.7f;
        const auto expected = alone_on(one_gpu, output.program());
        const auto split =
            ranks_over(one_gpu, shares_of(ranks, static_cast<uint32_t>(ranks)), output.program());
        REQUIRE(split->most_candidates() == expected->most_candidates());
        const bool large = vocab > 1000;  // more than a block of the first pass takes
        const std::vector<int32_t> tokens = random_tokens(ranks == 3 ? 33 : 3, 3);
        const auto check = [&](size_t rows, int32_t count, const RowMaskBits &masks) {
            CAPTURE(rows);
            CAPTURE(count);
            check_equal_rows(select_rows(*split, tokens, rows, count, masks),
                             select_rows(*expected, tokens, rows, count, masks));
        };
        const size_t rows = tokens.size();
        check(rows, 6, masks_of(random, rows, vocab));
        if (!large) {
            check(rows, 1, masks_of(random, rows, vocab));
            check(1, 1, {});
            const auto all = static_cast<int32_t>(std::min<int64_t>(vocab, 256));
            check(1, all, {});  // more than a device's part
            // A mask of nothing, and one of a single device's tokens.
            std::vector<uint64_t> none(static_cast<size_t>((vocab + 63) / 64)), last = none;
            last.back() = 1;
            check(3, 20, {none, last, {}});
        }
        // Whole rows of the same batch.
        std::vector<float> a(static_cast<size_t>(vocab)), b = a;
        split->read_logits(1, a);
        expected->read_logits(1, b);
        CHECK(tests::same(a, b));
        if (nccl) CHECK(simt::nccl().misuse.empty());
    }
}

TEST_CASE(
    "tensor selection: a logit that is not finite is reported, on whatever device and outside of masks") {
    constexpr int64_t kVocab = 150;
    const Gpus gpus(3);
    const std::vector<int32_t> tokens = random_tokens(2, 3);
    std::vector<uint64_t> mask(3);
    mask[0] = 0b1000;  // not the tokens below
    for (const MakeDevice make : {one_gpu, one_cpu})
        for (const float value : {std::numeric_limits<float>::quiet_NaN(), 3e38f, -3e38f})
            for (const int64_t token : {5, 70, 149}) {
                CAPTURE(value);
                CAPTURE(token);
                OutputRows output(kVocab, 5);
                std::ranges::fill(output.row(token), value);
                const auto split = ranks_over(make, {1, 1, 1}, output.program());
                for (const int32_t count : {1, 4}) {
                    const SelectedRows found = select_rows(*split, tokens, 2, count, {{}, mask});
                    for (size_t row = 0; row < 2; ++row) {
                        const TopLogit &first = found.candidates[row * static_cast<size_t>(count)];
                        CHECK(first.token == token);
                        CHECK(std::isnan(first.logit));
                    }
                }
            }
}

TEST_CASE("tensor selection: CPUs select what their rows of logits say, and give whole rows on demand") {
    testing::Random random(8);
    for (const size_t ranks : {2, 3, 7})
        for (const int64_t vocab : {131, 400}) {
            CAPTURE(ranks);
            CAPTURE(vocab);
            const OutputRows output(vocab, 6, {3, 60, vocab - 1});
            const Program &program = output.program();
            const std::vector<int32_t> tokens = random_tokens(20, 4);
            const std::vector<float> logits = tests::run(*alone_on(one_cpu, program), program, tokens, 20);
            const auto row_of = [&](size_t row) {
                return std::span(logits).subspan(row * static_cast<size_t>(vocab),
                                                 static_cast<size_t>(vocab));
            };
            const auto split = ranks_over(one_cpu, shares_of(ranks, static_cast<uint32_t>(ranks)), program);
            REQUIRE(split->most_candidates() == kMostSelected);
            for (const int32_t count : {1, 9, 131}) {
                const RowMaskBits masks = masks_of(random, 20, vocab);
                SelectedRows expected{std::vector<TopLogit>(20 * static_cast<size_t>(count)),
                                      std::vector<ExpSum>(20)};
                const auto each = static_cast<size_t>(count);
                for (size_t row = 0; row < 20; ++row) {
                    select_candidates(row_of(row), masks[row],
                                      std::span(expected.candidates).subspan(row * each, each));
                    if (count > 1) expected.sums[row] = sum_of_exp(row_of(row), masks[row]);
                }
                check_equal_rows(select_rows(*split, tokens, 20, count, masks), expected);
            }
            for (const int32_t row : {0, 13, 19}) {
                std::vector<float> whole(static_cast<size_t>(vocab));
                split->read_logits(row, whole);
                CHECK(std::ranges::equal(whole, row_of(static_cast<size_t>(row))));
            }
        }
}

TEST_CASE("tensor selection: a rank sends 8 bytes per candidate and 40 per sum, and 4 per logit on demand") {
    const OutputRows output(203, 5);
    const Shares shares = {2, 1, 1};
    const Cut cut = cut_program(output.program(), shares).vocabulary;
    std::atomic<size_t> bytes = 0;
    const auto split = ranks_over(one_cpu, shares, output.program(),
                                  [&](int size) { return tests::counting_communicators(size, bytes); });
    const std::vector<int32_t> tokens = random_tokens(6, 3);
    const auto received = [&](const std::function<void()> &f) {
        const size_t before = bytes;
        f();
        return bytes - before;
    };
    const size_t gathers = received([&] { select_rows(*split, tokens, 0, 1); });
    CHECK(gathers > 0);
    for (const size_t rows : {1, 6})
        for (const int32_t count : {1, 5, 100}) {
            size_t expected = 0;
            for (size_t r = 1; r < cut.size(); ++r)
                expected += rows * (8 * static_cast<size_t>(std::min<int64_t>(count, cut[r].size())) +
                                    (count > 1 ? 40 : 0));
            CHECK(received([&] { select_rows(*split, tokens, rows, count); }) == gathers + expected);
        }
    std::vector<float> row(203);
    CHECK(received([&] { split->read_logits(2, row); }) == 4 * static_cast<size_t>(203 - cut[0].size()));
}

TEST_CASE("tensor selection: from GPUs come candidates and sums, and rows of logits only on demand") {
    if (!simt::emulated()) return;
    const Gpus gpus(3);
    const simt::WithNccl nccl;
    const OutputRows output(203, 5);
    const auto split = ranks_over(one_gpu, {1, 1, 1}, output.program());
    const Cut cut = cut_program(output.program(), Shares{1, 1, 1}).vocabulary;
    const std::vector<int32_t> tokens = random_tokens(4, 3);
    for (const int32_t count : {1, 5, 100}) {
        simt::take_host_traffic();
        simt::take_reports();
        select_rows(*split, tokens, 4, count);
        uint64_t written = 0, expected = 0;
        for (const simt::LaunchReport &report : simt::take_reports()) {
            const auto found = report.traffic.find("pinned memory");
            if (found != report.traffic.end()) written += found->second.written;
        }
        for (const Range &part : cut)
            expected +=
                4 * (8 * static_cast<uint64_t>(std::min<int64_t>(count, part.size())) + (count > 1 ? 40 : 0));
        CHECK(written == expected);
        CHECK(simt::take_host_traffic().bytes_to_host == 0);
    }
    std::vector<float> row(203);
    split->read_logits(2, row);
    CHECK(simt::take_host_traffic().bytes_to_host == 4 * 203);
}
