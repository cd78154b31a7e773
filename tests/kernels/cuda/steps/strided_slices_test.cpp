// Steps on slices of rows, in the emulator: random programs that fill slots, process slices
// of them and copy them out.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/plan.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/simt/simt.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels;

namespace {

using Rows = std::vector<std::vector<float>>;  // of a slot: [token][width]

constexpr int64_t kVocab = 40;
constexpr int32_t kMaxTokens = 80;

int64_t between(std::mt19937 &random, int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least + 1));
}

// A program without a cache. Every slot is filled from a table of its own, one row per
// token, and read at the end.
class PiecesProgram {
  public:
    Slot slot(int64_t width, std::mt19937 &random) {
        const auto id = static_cast<Slot>(program_.slots.size());
        std::normal_distribution<float> value(0, 1);
        std::vector<float> table(static_cast<size_t>(kVocab * width));
        for (float &v : table) v = value(random);
        program_.slots.push_back({"slot " + std::to_string(id), width});
        program_.steps.push_back(Embed{floats("table", kVocab, width, table), id});
        tables_.push_back(std::move(table));
        return id;
    }
    WeightId floats(const std::string &name, int64_t rows, int64_t cols, std::vector<float> values) {
        const auto kept = std::make_shared<const std::vector<float>>(std::move(values));
        program_.constants.push_back(kept);
        return add({name, gguf::Type::F32, rows, cols, reinterpret_cast<const std::byte *>(kept->data())});
    }
    WeightId add(const Weight &weight) {
        program_.weights.push_back(weight);
        return static_cast<WeightId>(program_.weights.size() - 1);
    }
    // Random matrices as bytes in the file's layout.
    WeightId matrices(gguf::Type type, int64_t count, int64_t rows, int64_t cols, std::mt19937 &random) {
        bytes_.push_back(std::make_shared<const std::vector<std::byte>>(
            tests::random_weights(type, count * rows, cols, random)));
        return add({"matrices", type, rows, cols, bytes_.back()->data(), count});
    }
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    void step(const Step &step) { program_.steps.push_back(step); }

    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    // The initial content of the slots.
    std::vector<Rows> filled(const std::vector<int32_t> &tokens) const {
        std::vector<Rows> slots;
        for (size_t s = 0; s < tables_.size(); ++s) {
            const auto cols = static_cast<size_t>(program_.slots[s].width);
            Rows rows;
            for (const int32_t token : tokens) {
                const auto row =
                    tables_[s].begin() + static_cast<std::ptrdiff_t>(cols * static_cast<size_t>(token));
                rows.emplace_back(row, row + static_cast<std::ptrdiff_t>(cols));
            }
            slots.push_back(std::move(rows));
        }
        return slots;
    }
    Program finished() const {
        Program program = program_;
        Program::Part part{program.steps.size(), {}, {}};
        for (size_t s = 0; s < program.slots.size(); ++s) part.out.push_back(static_cast<Slot>(s));
        program.parts = {part};
        return program;
    }

  private:
    Program program_;
    std::vector<std::vector<float>> tables_;
    std::vector<std::shared_ptr<const std::vector<std::byte>>> bytes_;
};

// A program on the emulated device.
class OnDevice {
  public:
    explicit OnDevice(Program program) : program_(std::move(program)), backend_(cuda::make_cuda_backend(0)) {
        backend_->load(program_, {}, kMaxTokens);
    }
    // The content of the slots after the program's steps, for tokens that arrive in chunks.
    std::vector<Rows> execute(const std::vector<int32_t> &tokens, size_t chunk) {
        std::vector<Rows> slots(program_.slots.size());
        for (size_t at = 0; at < tokens.size(); at += chunk) {
            const auto part = std::span(tokens).subspan(at, std::min(chunk, tokens.size() - at));
            std::vector<int32_t> positions(part.size());
            std::iota(positions.begin(), positions.end(), 0);
            const SequenceSpan span{0, static_cast<int32_t>(part.size()), 0, {}};
            REQUIRE(backend_->execute({part, positions, {&span, 1}, {}}, std::span<float>{}));
            for (size_t s = 0; s < slots.size(); ++s) {
                const SlotRows rows = backend_->exchange(static_cast<Slot>(s));
                for (size_t t = 0; t < part.size(); ++t) {
                    const float *row = rows.data + static_cast<std::ptrdiff_t>(t) * rows.stride;
                    slots[s].emplace_back(row, row + program_.slots[s].width);
                }
            }
        }
        return slots;
    }

  private:
    const Program program_;
    std::unique_ptr<Backend> backend_;
};

std::vector<int32_t> random_tokens(int64_t count, std::mt19937 &random) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t &t : tokens) t = static_cast<int32_t>(random() % kVocab);
    return tokens;
}

// `count` slices of `width` floats within a row of `row` floats. apart: they do not overlap.
StridedSlices random_slices(int64_t row, int64_t count, int64_t width, bool apart, std::mt19937 &random) {
    const int64_t most = count == 1 ? 0 : (row - width) / (count - 1);
    const int64_t stride = between(random, apart && count > 1 ? width : 0, most);
    const int64_t span = (count - 1) * stride + width, first = between(random, 0, row - span);
    // Sometimes from the last slice to the first.
    if (random() % 4 == 0) return {first + (count - 1) * stride, -stride};
    return {first, stride};
}

size_t launches_of(const std::string &kernel) {
    const auto reports = simt::take_reports();
    return static_cast<size_t>(std::ranges::count(reports, kernel, &simt::LaunchReport::kernel));
}

}  // namespace

TEST_CASE("cuda pieces: copies in one launch give the same as one after the other") {
    for (const uint32_t seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const bool in_fours = seed % 2 == 0;  // 16 bytes at a time
        const int64_t unit = in_fours ? 4 : 1;
        PiecesProgram pieces;
        const int64_t slots = between(random, 3, 5);
        for (int64_t s = 0; s < slots; ++s) pieces.slot(unit * between(random, 2, 100), random);
        std::vector<Copy> copies;
        for (int i = 0; i < 12; ++i) {
            const auto in = static_cast<Slot>(random() % static_cast<uint32_t>(slots));
            const auto out = static_cast<Slot>((in + between(random, 1, slots - 1)) % slots);
            const int64_t a = pieces.width(in) / unit, b = pieces.width(out) / unit;
            const int64_t count = between(random, 1, std::min<int64_t>(b, 9));
            const int64_t width = between(random, 1, std::min(a, b / count));
            StridedSlices from = random_slices(a, count, width, false, random),
                          to = random_slices(b, count, width, true, random);
            for (StridedSlices *p : {&from, &to}) p->first *= unit, p->stride *= unit;
            copies.push_back({in, out, from, to, static_cast<int32_t>(count), width * unit});
            pieces.step(copies.back());
        }
        const std::vector<int32_t> tokens = random_tokens(between(random, 17, 40), random);
        std::vector<Rows> expected = pieces.filled(tokens);
        for (const Copy &c : copies)
            for (size_t t = 0; t < tokens.size(); ++t)
                for (int64_t i = 0; i < c.count; ++i)
                    std::copy_n(
                        expected[static_cast<size_t>(c.in)][t].begin() + c.from.first + i * c.from.stride,
                        c.width,
                        expected[static_cast<size_t>(c.out)][t].begin() + c.to.first + i * c.to.stride);
        simt::settings().seed = seed;
        OnDevice device(pieces.finished());
        CHECK(device.execute(tokens, tokens.size()) == expected);
        CHECK(device.execute(tokens, 5) == expected);
        simt::settings() = {};
    }
}

TEST_CASE("cuda pieces: copies share a launch where none needs another's result, and move every byte once") {
    std::mt19937 random(8);
    PiecesProgram pieces;
    const Slot q = pieces.slot(4 * 96, random), latent = pieces.slot(128, random),
               turned = pieces.slot(32, random), query = pieces.slot(4 * 160, random),
               key = pieces.slot(160, random);
    // As multi-head latent attention assembles queries and keys.
    pieces.step(Copy{q, query, {64, 96}, {128, 160}, 4, 32});
    pieces.step(Copy{latent, key, {}, {}, 1, 128});
    pieces.step(Copy{turned, key, {}, {128, 0}, 1, 32});
    pieces.step(Copy{key, query, {}, {0, 160}, 4, 128});  // reads the output of the previous ones
    const Program program = pieces.finished();
    const cuda::Plan plan = cuda::plan(program);
    std::vector<size_t> sizes;
    for (const cuda::Op &op : plan.ops)
        if (const auto *copies = std::get_if<cuda::CopyOp>(&op)) sizes.push_back(copies->copies.size());
    CHECK(sizes == std::vector<size_t>{3, 1});
    const std::vector<int32_t> tokens = random_tokens(3, random);
    if (!simt::emulated()) return;
    simt::take_reports();
    OnDevice(program).execute(tokens, 3);
    CHECK(launches_of("copy") == 2);
    Program overlapping = program;
    std::get<Copy>(overlapping.steps.back()).to.stride = 100;
    CHECK_THROWS_WITH_AS(cuda::plan(overlapping),
                         "the GPU has no kernel for a copy to overlapping slices yet", BackendError);
}

namespace {

// W_i of `type`, random sizes and slices, between two slots.
HeadLinear random_heads(PiecesProgram &pieces, gguf::Type type, std::mt19937 &random) {
    const auto block = static_cast<int64_t>(gguf::traits(type).block_size);
    const int64_t cols =
                      block == 1 ? between(random, 1, 300) : block * between(random, 1, block == 256 ? 2 : 9),
                  heads = between(random, 1, 3), rows = between(random, 1, 20);
    const Slot in = pieces.slot(heads * cols + between(random, 0, 9), random),
               out = pieces.slot(heads * rows + between(random, 0, 9), random);
    StridedSlices from = random_slices(pieces.width(in), heads, cols, false, random);
    if (random() % 2 == 0) from.first = from.first / 4 * 4, from.stride = from.stride / 4 * 4;
    return {in,
            out,
            from,
            random_slices(pieces.width(out), heads, rows, true, random),
            pieces.matrices(type, heads, rows, cols, random),
            gguf::traits(type).quantized && random() % 2 == 0};
}

// The result of the step for a token's rows `in` and `out`, in the canonical order of linear.h.
std::vector<float> canonical_heads(const HeadLinear &step, const Weight &w, const std::vector<float> &in,
                                   std::vector<float> out) {
    const size_t bytes = gguf::row_bytes(w.type, w.cols);
    for (int64_t head = 0; head < w.count; ++head)
        for (int64_t row = 0; row < w.rows; ++row)
            out[static_cast<size_t>(step.to.first + head * step.to.stride + row)] = tests::canonical_dot(
                w.type, {w.data + static_cast<size_t>(head * w.rows + row) * bytes, bytes},
                std::span(in).subspan(static_cast<size_t>(step.from.first + head * step.from.stride),
                                      static_cast<size_t>(w.cols)),
                step.one_range);
    return out;
}

// The error of a token's outputs, relative to the bound for rounded activations.
double error_of_heads(const HeadLinear &step, const Weight &w, const std::vector<float> &in,
                      const std::vector<float> &out) {
    std::vector<float> values(static_cast<size_t>(w.cols));
    double worst = 0;
    for (int64_t head = 0; head < w.count; ++head)
        for (int64_t row = 0; row < w.rows; ++row) {
            const size_t bytes = gguf::row_bytes(w.type, w.cols);
            gguf::dequantize_row(w.type, w.data + static_cast<size_t>(head * w.rows + row) * bytes,
                                 values.data(), w.cols);
            const auto x = std::span(in).subspan(
                static_cast<size_t>(step.from.first + head * step.from.stride), values.size());
            double exact = 0;
            for (size_t k = 0; k < values.size(); ++k)
                exact += static_cast<double>(values[k]) * static_cast<double>(x[k]);
            const double y =
                static_cast<double>(out[static_cast<size_t>(step.to.first + head * step.to.stride + row)]);
            worst =
                std::max(worst, std::fabs(y - exact) / (tests::rounding_bound(w.type, values, x) + 1e-30));
        }
    return worst;
}

}  // namespace

TEST_CASE(
    "cuda pieces: a matrix per head, of every format, in the canonical order for any number of tokens") {
    for (const gguf::Type type : tests::kLinearTypes) {
        const uint32_t seed = 7 * static_cast<uint32_t>(type) + 5;
        CAPTURE(gguf::traits(type).name);
        CAPTURE(seed);
        std::mt19937 random(seed);
        PiecesProgram pieces;
        const HeadLinear step = random_heads(pieces, type, random);
        const Weight &w = pieces.weight(step.weight);
        CAPTURE(w.count);
        CAPTURE(w.rows);
        CAPTURE(w.cols);
        pieces.step(step);
        const std::vector<int32_t> tokens = random_tokens(between(random, 65, 68), random);
        std::vector<Rows> expected = pieces.filled(tokens);
        const auto in = static_cast<size_t>(step.in), out = static_cast<size_t>(step.out);
        simt::settings().seed = seed;
        OnDevice device(pieces.finished());
        const Rows whole = device.execute(tokens, tokens.size())[out];
        double error = 0;
        size_t wrong = 0;
        for (size_t t = 0; t < tokens.size(); ++t) {
            if (t % 16 < 2) {  // only some tokens, because it is slow
                wrong += tests::not_canonical(type, whole[t],
                                              canonical_heads(step, w, expected[in][t], expected[out][t]));
                error = std::max(error, error_of_heads(step, w, expected[in][t], whole[t]));
            }
        }
        CHECK(wrong == 0);
        CHECK(error < 1);
        // Uses the kernels for up to 4, 8 and 16 tokens; a chunk of 17 uses the prefill
        // kernel. (Two chunks each.)
        for (const size_t chunk : {size_t{3}, size_t{7}, size_t{16}, size_t{17}}) {
            CAPTURE(chunk);
            const auto two = static_cast<std::ptrdiff_t>(2 * chunk);
            const std::vector<int32_t> first(tokens.begin(), tokens.begin() + two);
            CHECK(device.execute(first, chunk)[out] == Rows(whole.begin(), whole.begin() + two));
        }
        simt::settings() = {};
    }
}

TEST_CASE("cuda pieces: matrices of heads are read once for 8 tokens and once per 48, with nothing between") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    std::mt19937 random(4);
    constexpr int64_t kHeads = 3, kRows = 160, kCols = 256;
    const auto traffic_of = [&](gguf::Type type, int64_t tokens) {
        PiecesProgram pieces;
        const Slot in = pieces.slot(kHeads * kCols, random), out = pieces.slot(kHeads * kRows, random);
        pieces.step(
            HeadLinear{in, out, {0, kCols}, {0, kRows}, pieces.matrices(type, kHeads, kRows, kCols, random)});
        simt::take_reports();
        OnDevice(pieces.finished()).execute(random_tokens(tokens, random), static_cast<size_t>(tokens));
        return simt::take_reports();
    };
    const auto bytes =
        static_cast<uint64_t>(kHeads * cuda::tiled_bytes(cuda::TileFormat::Q4_0, kRows, kCols));
    auto reports = traffic_of(gguf::Type::Q4_0, 80);
    CHECK(reports.back().kernel == "linear_prefill");
    CHECK(reports.back().traffic.at("matrices").read == 2 * bytes);
    CHECK(reports[reports.size() - 2].kernel == "quantize_pieces");
    CHECK(reports[reports.size() - 2].traffic.at("heads").written ==
          80 * kHeads * (kCols * 2 + 4 * 4 + kCols / 32 * 4 + kCols / 16 * 4) + cuda::kDigitRows * kCols * 2);
    // The four lanes of a row read the same bytes of side planes.
    const uint64_t side =
        4 * kHeads * kRows / 16 * static_cast<uint64_t>(cuda::tile_layout(cuda::TileFormat::Q4_0).side);
    reports = traffic_of(gguf::Type::Q4_0, 8);
    CHECK(reports.back().kernel == "linear");
    CHECK(reports.back().traffic.at("matrices").streamed >= bytes - side / 4);
    CHECK(reports.back().traffic.at("matrices").streamed <= bytes + side);
    reports = traffic_of(gguf::Type::F16, 80);
    CHECK(reports.back().kernel == "linear_prefill_halves");
    CHECK(reports.back().traffic.at("matrices").read == kHeads * kRows * kCols * 2);
    CHECK(reports[reports.size() - 2].kernel == "quantize_pieces");
    CHECK(reports[reports.size() - 2].traffic.at("heads").written == 80 * kHeads * (kCols * 2 + 4));
    reports = traffic_of(gguf::Type::F16, 8);
    CHECK(reports.back().kernel == "linear");
    CHECK(reports.back().traffic.at("matrices").streamed == kHeads * kRows * kCols * 2);
    // F32 is read in place.
    reports = traffic_of(gguf::Type::F32, 8);
    CHECK(reports.back().kernel == "linear");
    CHECK(reports[reports.size() - 2].kernel == "embed");
    CHECK(reports.back().traffic.at("matrices").streamed == kHeads * kRows * kCols * 4);
    CHECK(!reports.back().traffic.contains("heads"));
}

TEST_CASE("cuda pieces: unsupported matrices of heads are reported before the upload") {
    std::mt19937 random(6);
    PiecesProgram pieces;
    const Slot in = pieces.slot(64, random), out = pieces.slot(64, random);
    const WeightId w = pieces.matrices(gguf::Type::F32, 2, 8, 32, random);
    const HeadLinear good{in, out, {0, 32}, {0, 8}, w};
    const auto plan_of = [&](const HeadLinear &step) {
        PiecesProgram own = pieces;
        own.step(step);
        return cuda::plan(own.finished());
    };
    CHECK(std::holds_alternative<HeadLinear>(plan_of(good).ops.back()));
    HeadLinear bad = good;
    bad.out = in;
    CHECK_THROWS_WITH_AS(plan_of(bad),
                         "the GPU has no kernel for matrices of heads that overwrite their input yet",
                         BackendError);
    bad = good;
    bad.to.stride = 7;
    CHECK_THROWS_WITH_AS(
        plan_of(bad), "the GPU has no kernel for matrices of heads whose outputs overlap yet", BackendError);
}
