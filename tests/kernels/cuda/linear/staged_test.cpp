// The copies of a launch's input in shared memory, and the weights that a launch fetches for the next one.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/linear/linear_launch.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/simt/turing.h"
#include "tests/support/skip.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;

namespace {

// Settings of the emulated device in a scope.
class Settings {
  public:
    Settings() : before_(simt::settings()) {}
    ~Settings() { simt::settings() = before_; }
    Settings(const Settings &) = delete;
    Settings &operator=(const Settings &) = delete;

  private:
    simt::Settings before_;
};

LinearParams one_matrix(const Matrix &matrix, const Input &input, const DeviceMemory &out, int tokens) {
    LinearParams p = params_for(input, tokens);
    p.matrices = 1;
    p.matrix[0].tiles = matrix.tiles.data();
    p.matrix[0].out = out.as<float>();
    p.matrix[0].out_stride = matrix.rows;
    p.matrix[0].rows = static_cast<int32_t>(matrix.rows);
    return p;
}

// What launch_linear() computes on the emulated device as it is set.
std::vector<float> launched(Stream &stream, const Matrix &matrix, const Input &input, int tokens) {
    const DeviceMemory out =
        upload(stream, std::vector<float>(static_cast<size_t>(tokens * matrix.rows), NAN), "out");
    const DeviceProperties device = properties(0);
    Launcher launcher(stream, device);
    prepare_linear(device, tile_format(matrix.type), tokens);
    launch_linear(launcher, one_matrix(matrix, input, out, tokens), tile_format(matrix.type));
    std::vector<float> y = download(stream, out);
    y.resize(static_cast<size_t>(tokens * matrix.rows));
    return y;
}

// A device where a block that takes `bytes` of shared memory fits twice on a multiprocessor, and one that takes more does not.
void set_shared_of_two(size_t bytes) {
    simt::settings().shared_per_multiprocessor = 2 * (bytes + 1024);
    CHECK(properties(0).shared_of_two() == bytes);
}

uint64_t read_of(const char *region) {
    uint64_t read = 0;
    for (const simt::LaunchReport &report : simt::take_reports())
        if (const auto found = report.traffic.find(region); found != report.traffic.end())
            read += found->second.read;
    return read;
}

}  // namespace

TEST_CASE(
    "cuda linear: a block copies its input if two such blocks fit on a multiprocessor, with the same bits") {
    const Settings as_before;
    Stream stream;
    std::mt19937 random(61);
    for (const gguf::Type type : tests::kLinearTypes) {
        const TileFormat format = tile_format(type);
        if (!can_stage(format, {1})) continue;
        CAPTURE(gguf::traits(type).name);
        const int64_t cols = widths(type).back();
        const Matrix matrix(stream, type, 250, cols, random);  // 16 tiles
        const Input input(stream, random_activations(8 * cols, random), cols, 8);
        for (const int tokens : {1, 2, 4, 5, 8}) {
            CAPTURE(tokens);
            const std::vector<float> expected = canonical(matrix, input, tokens);
            const LinearParams p = params_for(input, tokens);
            const size_t needed = linear_shared(format, {.tokens = tokens, .staged = true}, p);
            simt::take_reports();
            set_shared_of_two(needed);
            CHECK(tests::not_canonical(type, launched(stream, matrix, input, tokens), expected) == 0);
            const uint64_t copied = read_of("activations");
            set_shared_of_two(needed - 16);
            CHECK(tests::not_canonical(type, launched(stream, matrix, input, tokens), expected) == 0);
            if (simt::emulated()) CHECK(copied != read_of("activations"));
        }
    }
}

TEST_CASE("cuda linear: slices of a batch multiply their own rows, copied or not") {
    const Settings as_before;
    Stream stream;
    std::mt19937 random(62);
    for (const gguf::Type type : {gguf::Type::Q8_0, gguf::Type::Q4_K, gguf::Type::Q6_K, gguf::Type::F16}) {
        CAPTURE(gguf::traits(type).name);
        const Matrix matrix(stream, type, 40, 512, random);
        const Input input(stream, random_activations(24 * 512, random), 512, 24);
        for (const int tokens : {20, 24}) {  // slices of 16 and 4, or 16 and 8
            CAPTURE(tokens);
            const std::vector<float> expected = canonical(matrix, input, tokens);
            for (const size_t shared : {size_t{96} << 10, size_t{1} << 10}) {
                CAPTURE(shared);
                set_shared_of_two(shared);
                CHECK(tests::not_canonical(type, launched(stream, matrix, input, tokens), expected) == 0);
            }
        }
    }
}

TEST_CASE("cuda linear: blocks that prepare their input have the bits of a launch that did it before") {
    const Settings as_before;
    const uint32_t seed = 63;
    CAPTURE(seed);
    Stream stream;
    std::mt19937 random(seed);
    for (const gguf::Type type : tests::kLinearTypes) {
        const TileFormat format = tile_format(type);
        if (!can_stage(format, {1})) continue;
        CAPTURE(gguf::traits(type).name);
        // With groups of less than 256 values at the end where the format has them; rows of one round and of several.
        for (const int64_t cols : {widths(type).back(), random() % 2 == 0 ? int64_t{5120} : int64_t{256}}) {
            CAPTURE(cols);
            const Matrix matrix(stream, type, 40, cols, random);
            const int tokens = 1 + static_cast<int>(random() % 4);
            CAPTURE(tokens);
            const Input input(stream, random_activations(tokens * cols, random), cols, tokens);
            const DeviceMemory norm =
                upload(stream, random_activations(cols, random), "norm", Region::Weights);
            const bool has_norm = random() % 4 != 0;
            const QuantizeParams prepare{input.plain.as<const float>(),
                                         has_norm ? norm.as<const float>() : nullptr,
                                         nullptr,
                                         1e-5f,
                                         static_cast<int32_t>(cols),
                                         input.stride,
                                         input.quantized};
            const std::vector<float> empty(static_cast<size_t>(tokens * matrix.rows), NAN);
            const DeviceMemory before = upload(stream, empty, "before"), out = upload(stream, empty, "out");
            simt::run_kernel(stream, quantize_kernel(), {static_cast<uint32_t>(tokens), kQuantizeShared},
                             prepare);
            const LinearVersion version{.tokens = tokens, .staged = true};
            LinearParams p = one_matrix(matrix, input, before, tokens);
            const size_t shared = linear_shared(format, version, p);
            simt::run_kernel(stream, linear_kernel(format, version), {2, shared}, p);
            p.matrix[0].out = out.as<float>();
            p.prepare_input = prepare;
            p.x = {};
            for (const uint32_t blocks : {1u, 3u, 40u}) {
                CAPTURE(blocks);
                simt::settings().seed = blocks;
                simt::run_kernel(stream, linear_kernel(format, version), {blocks, shared}, p);
                CHECK(different(download(stream, out), download(stream, before)) == 0);
            }
        }
    }
}

TEST_CASE("cuda linear: a block reads its input once, however many tiles it has") {
    if (!simt::emulated()) return runnel::testing::skip("only the emulator counts bytes");
    const Settings as_before;
    Stream stream;
    std::mt19937 random(62);
    constexpr int64_t kCols = 2048;
    const Matrix matrix(stream, gguf::Type::Q4_K, 400, kCols, random);  // more tiles than blocks
    const Input input(stream, random_activations(3 * kCols, random), kCols, 3);
    for (const int tokens : {1, 3}) {
        CAPTURE(tokens);
        simt::take_reports();
        launched(stream, matrix, input, tokens);
        // Per block of 256 columns: codes, two parts of 8 sums, a scale. Six blocks: two on each of three multiprocessors.
        const auto once = static_cast<uint64_t>(tokens * (kCols / 256) * (512 + 32 + 4));
        CHECK(read_of("activations") == 6 * once);
    }
}

TEST_CASE(
    "cuda linear: launches of experts copy their input only if it is small beside the weights, and if they "
    "may") {
    if (!simt::emulated()) return runnel::testing::skip("only the emulator counts bytes");
    const Settings as_before;
    Stream stream;
    std::mt19937 random(64);
    constexpr int64_t kCols = 512;
    constexpr int32_t kExperts = 6, kTiles = 8, kRows = 4;  // rows: each of another expert
    const Matrix experts(stream, gguf::Type::Q8_0, kExperts * kTiles * kTileRows, kCols, random);
    const Input input(stream, random_activations(32 * kCols, random), kCols, 32);
    std::vector<TokenGroup> groups;
    for (int32_t i = 0; i < kRows; ++i) groups.push_back({i + 1, i, 1});
    const DeviceMemory listed = upload(stream, groups, "groups"),
                       counted = upload(stream, std::vector<int32_t>{kRows}, "count"),
                       out(kRows * kTiles * kTileRows * sizeof(float), "out");
    const auto read = [&](int32_t x_rows) {
        LinearParams p = params_for(input, kRows);
        p.matrices = 1;
        p.matrix[0].tiles = experts.tiles.data();
        p.matrix[0].out = out.as<float>();
        p.matrix[0].out_stride = kTiles * kTileRows;
        p.matrix[0].rows = kTiles * kTileRows;
        p.x_rows = x_rows;
        const DeviceProperties device = properties(0);
        Launcher launcher(stream, device);
        prepare_experts(device, TileFormat::Q8_0, kRows);
        simt::take_reports();
        launch_experts(launcher, p, TileFormat::Q8_0,
                       {1, kExperts, kRows, kSmallGroupTokens, listed.as<TokenGroup>(), nullptr,
                        counted.as<int32_t>(), nullptr});
        stream.wait();
        return read_of("activations");
    };
    constexpr uint64_t kRow = kCols / 256 * (512 + 4), kBlocks = 6;
    CHECK(read(kRows) == kBlocks * kRows * kRow);
    const uint64_t through_l1 = read(0);
    CHECK(through_l1 != kBlocks * kRows * kRow);
    CHECK(read(32) == through_l1);  // 33 KB of activations for each block, which has 23 KB of weights
    simt::settings().shared_per_multiprocessor = size_t{20} << 10;
    CHECK(read(kRows) == through_l1);
}

TEST_CASE("cuda linear: experts copy their input only if all of its rows have digits") {
    if (!simt::emulated()) return runnel::testing::skip("only the emulator counts bytes");
    const Settings as_before;
    set_shared_of_two(size_t{64} << 10);
    Stream stream;
    std::mt19937 random(66);
    constexpr int64_t kCols = 256;
    constexpr int32_t kOutputs = 2048, kMost = static_cast<int32_t>(kDigitRows);
    const Matrix expert(stream, gguf::Type::Q8_0, kOutputs, kCols, random);
    const Input input(stream, random_activations((kMost + 1) * kCols, random), kCols, kMost + 1);
    const DeviceMemory listed = upload(stream, std::vector<TokenGroup>{{0, 0, 1}}, "groups"),
                       counted = upload(stream, std::vector<int32_t>{1}, "count"),
                       out(kOutputs * sizeof(float), "out");
    for (const int32_t rows : {kMost, kMost + 1}) {
        CAPTURE(rows);
        const DeviceMemory sources = upload(stream, std::vector<int32_t>{rows - 1}, "sources");
        LinearParams p = params_for(input, 1);
        p.matrices = 1;
        p.matrix[0].tiles = expert.tiles.data();
        p.matrix[0].out = out.as<float>();
        p.matrix[0].out_stride = kOutputs;
        p.matrix[0].rows = kOutputs;
        p.sources = sources.as<int32_t>();
        p.x_rows = rows;
        const DeviceProperties device = properties(0);
        Launcher launcher(stream, device);
        prepare_experts(device, TileFormat::Q8_0, 1);
        simt::take_reports();
        launch_experts(
            launcher, p, TileFormat::Q8_0,
            {1, 1, 1, kSmallGroupTokens, listed.as<TokenGroup>(), nullptr, counted.as<int32_t>(), nullptr});
        const std::vector<float> y = download(stream, out);
        const bool copied = read_of("activations") % (static_cast<uint64_t>(rows) * (512 + 4)) == 0;
        CHECK(copied == (rows == kMost));
        size_t wrong = 0;
        for (int32_t r = 0; r < kOutputs; ++r)
            wrong += y[static_cast<size_t>(r)] !=
                     tests::canonical_dot(gguf::Type::Q8_0, expert.row(r), input.row(rows - 1));
        CHECK(wrong == 0);
    }
}

TEST_CASE("cuda linear: experts with their input in shared memory, bit for bit as without") {
    Stream stream;
    for (const bool turing : {false, true}) {
        CAPTURE(turing);
        for (const gguf::Type type : tests::kLinearTypes) {
            const TileFormat format = tile_format(type);
            if (!can_stage(format, {1})) continue;
            CAPTURE(gguf::traits(type).name);
            const uint32_t seed = 71 * static_cast<uint32_t>(type) + turing;
            CAPTURE(seed);
            std::mt19937 random(seed);
            constexpr int32_t kExperts = 3, kRows = 21, kInputRows = 5;
            const int64_t cols = widths(type).back();
            // The experts' matrices, one after the other: tiles do not cross them.
            const Matrix experts(stream, type, kExperts * 32, cols, random);
            const Input input(stream, random_activations(kInputRows * cols, random), cols, kInputRows);
            std::vector<TokenGroup> groups;
            std::vector<int32_t> sources;
            for (int32_t e = 0; e < kExperts; ++e)
                for (size_t n = random() % 4; n > 0; --n) {
                    const auto count = static_cast<int32_t>(1 + random() % kSmallGroupTokens);
                    groups.push_back({e, static_cast<int32_t>(sources.size()), count});
                    for (int32_t i = 0; i < count; ++i)
                        sources.push_back(static_cast<int32_t>(random() % kInputRows));
                }
            if (groups.empty()) continue;
            const auto rows = static_cast<int32_t>(sources.size());
            const DeviceMemory listed = upload(stream, groups, "groups"),
                               counted =
                                   upload(stream, std::vector<int32_t>{static_cast<int32_t>(groups.size())},
                                          "count"),
                               read = upload(stream, sources, "sources");
            const auto product = [&](bool staged) {
                const DeviceMemory out =
                    upload(stream, std::vector<float>(static_cast<size_t>(rows) * kRows, NAN), "out");
                LinearParams p = params_for(input, rows);
                p.matrices = 1;
                p.matrix[0].tiles = experts.tiles.data();
                p.matrix[0].out = out.as<float>();
                p.matrix[0].out_stride = kRows;
                p.matrix[0].rows = kRows;  // of 32: the second tile of an expert is cut
                p.groups = listed.as<TokenGroup>(), p.group_count = counted.as<int32_t>();
                p.sources = read.as<int32_t>();
                p.x_rows = kInputRows;
                const auto grid = static_cast<uint32_t>(1 + random() % 3);
                const LinearVersion version{kSmallGroupTokens, true, staged};
                simt::run_kernel(stream, linear_kernel(format, version),
                                 {grid, linear_shared(format, version, p)}, p);
                return download(stream, out);
            };
            if (turing) {
                const simt::Turing as_turing;
                CHECK(different(product(true), product(false)) == 0);
            } else {
                CHECK(different(product(true), product(false)) == 0);
            }
        }
    }
}

TEST_CASE("cuda linear: a copy that is not waited for is found") {
    if (!simt::emulated()) return runnel::testing::skip("only the emulator leaves out a wait");
    const Settings as_before;
    Stream stream;
    std::mt19937 random(65);
    const Matrix matrix(stream, gguf::Type::Q4_K, 40, 512, random);
    const Input input(stream, random_activations(512, random), 512, 1);
    CHECK_NOTHROW(launched(stream, matrix, input, 1));
    simt::settings().faults.async_wait = true;
    CHECK_THROWS_AS(launched(stream, matrix, input, 1), simt::Violation);
}

TEST_CASE("cuda linear: the blocks of a launch fetch all weights that it names for a later one, once") {
    if (!simt::emulated()) {
        runnel::testing::skip("only the emulator counts bytes");
        return;
    }
    Stream stream;
    std::mt19937 random(63);
    const Matrix now(stream, gguf::Type::Q8_0, 70, 512, random);
    const Input input(stream, random_activations(2 * 512, random), 512, 2);
    for (const int64_t bytes : {16, 4080, 4096, 100'000, 700'000}) {
        CAPTURE(bytes);
        const DeviceMemory first(static_cast<size_t>(bytes), "first"), second(48, "second");
        name_region(first.data(), first.size(), "first", Region::Weights);
        name_region(second.data(), second.size(), "second", Region::Weights);
        const DeviceMemory out(2 * 70 * sizeof(float), "out");
        LinearParams p = one_matrix(now, input, out, 2);
        p.ahead.part[0] = {first.data(), bytes};
        p.ahead.part[1] = {second.data(), 48};
        simt::take_reports();
        constexpr LinearVersion kVersion{.tokens = 2, .staged = true};
        simt::run_kernel(
            stream, linear_kernel(TileFormat::Q8_0, kVersion),
            {static_cast<uint32_t>(1 + random() % 3), linear_shared(TileFormat::Q8_0, kVersion, p)}, p);
        stream.wait();
        const auto reports = simt::take_reports();
        REQUIRE(reports.size() == 1);
        CHECK(reports[0].traffic.at("first").fetched == static_cast<uint64_t>(bytes));
        CHECK(reports[0].traffic.at("second").fetched == 48);
    }
}
