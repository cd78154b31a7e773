// The cost model: its calibration, its counts of instructions and launches, and the page that it writes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/model/calibration.h"
#include "tests/gpu/model/report.h"
#include "tests/gpu/model/schedule.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/support/skip.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::tests;
using namespace runnel::tests::model;
using kernels::cuda::TileFormat;

namespace {

std::string text_of(const char *path) {
    std::ifstream in(path, std::ios::binary);
    REQUIRE_MESSAGE(in, path);
    return {std::istreambuf_iterator<char>(in), {}};
}

CodeTable recorded(std::string &compiler) {
    return read_code_table(text_of("tests/gpu/model/instructions.txt"), compiler);
}

CodeTable recorded() {
    std::string compiler;
    return recorded(compiler);
}

// Of the kernels that were measured.
CodeTable measured_code() {
    std::string compiler;
    return read_code_table(text_of("tests/gpu/model/measured.txt"), compiler);
}

double deviation(const CalibrationPoint &point, double boundary, double read = 0) {
    return std::abs(modeled(point, boundary, read) / point.measured - 1);
}

// Kernels that the emulated backend launches for so many tokens at once.
int launches(const TinyShape &shape, size_t tokens = 1) {
    const TinyProgram tiny(shape, 45);
    Runner runner(kernels::cuda::make_cuda_backend(0), tiny.program());
    runner.run(random_tokens(tokens, 50, 8), tokens);
    return static_cast<int>(runner.backend().launches());
}

}  // namespace

TEST_CASE("cost model: programs of others are reproduced within 5 or 10%") {
    for (const CalibrationPoint &point : calibration_points()) {
        CAPTURE(point.program);
        CAPTURE(point.model);
        CAPTURE(point.device);
        CHECK(deviation(point, boundary_of(point.program)) < point.tolerance);
    }
}

TEST_CASE("cost model: what this program reached on a device is reproduced within 10%") {
    const CodeTable code = measured_code();
    for (const MeasuredRun &run : measured_runs()) {
        CAPTURE(run.model);
        CAPTURE(name_of(run.type));
        const Range r =
            tokens_per_second(shape(run.model), run.type, device(run.device), code, Version::Measured);
        CHECK(std::abs(r.middle / run.measured - 1) < 0.1);
    }
}

TEST_CASE("cost model: what steps of 8 sequences took on a device is reproduced within 10%") {
    const CodeTable code = measured_code();
    for (const MeasuredBatch &run : measured_batches()) {
        CAPTURE(run.model);
        CAPTURE(name_of(run.type));
        const auto time = [&](int tokens) {
            return cost_of(shape(run.model), run.type, tokens, device(run.device), code, Case::Middle,
                           Version::Measured)
                .all();
        };
        const double mean =
            std::accumulate(run.steps.begin(), run.steps.end(), 0.0) / static_cast<double>(run.steps.size());
        CHECK(std::abs(time(kMeasuredSequences) / time(1) / mean - 1) < 0.1);
    }
}

TEST_CASE("cost model: wrong rates and boundaries do not pass the calibration") {
    // By device, a wrong rate of reads: the data sheets' figures, or too low ones.
    const auto passes = [](const std::string &on, double read, double boundary_factor) {
        return std::ranges::all_of(calibration_points(), [&](const CalibrationPoint &point) {
            return point.device != on ||
                   deviation(point, boundary_factor * boundary_of(point.program), read) < point.tolerance;
        });
    };
    for (const char *on : {"RTX 4090", "H100 SXM", "H200", "A100 80 GB", "RTX 5090"}) {
        CAPTURE(on);
        CHECK(passes(on, 0, 1));
        CHECK(!passes(on, 0, 0));
        CHECK(!passes(on, 0, 2));
        CHECK(!passes(on, 1.4 * device(on).read.middle, 1));
        CHECK(!passes(on, 0.7 * device(on).read.middle, 1));
    }
    CHECK(!passes("H200", 4300, 1));
}

TEST_CASE("cost model: a layer has the launches that the backend makes") {
    const auto of_a_layer = [](TinyShape shape, size_t tokens) {
        shape.layers = 1;
        const int one = launches(shape, tokens);
        shape.layers = 3;
        return (launches(shape, tokens) - one) / 2;
    };
    const auto modeled_layer = [](const char *name, size_t tokens) {
        Shape s = shape(name);
        const auto all = [&] {  // (Q8_0: all matrices of one format.)
            const auto count = static_cast<int>(tokens);
            return (count == 1 ? one_token(s, FileType::Q8_0) : one_batch(s, FileType::Q8_0, count))
                .launches();
        };
        s.layers = 1;
        const int one = all();
        s.layers = 3;
        return (all() - one) / 2;
    };
    TinyShape tiny = {.width = 256,
                      .feed_forward = 512,
                      .heads = 8,
                      .kv_heads = 2,
                      .head_dim_k = 64,
                      .head_dim_v = 64,
                      .type = gguf::Type::Q8_0};
    for (const size_t tokens : {1, 4, 8}) {
        CAPTURE(tokens);
        CHECK(of_a_layer(tiny, tokens) == modeled_layer("Llama-3-8B", tokens));
        TinyShape mixture = tiny;
        mixture.experts = {.count = 4};
        CHECK(of_a_layer(mixture, tokens) == modeled_layer("Qwen3-30B-A3B", tokens));
    }
    tiny.layers = 1;
    Shape one = shape("Llama-3-8B");
    one.layers = 1;
    CHECK(launches(tiny) == one_token(one, FileType::Q8_0).launches());
}

TEST_CASE("cost model: bytes of known files") {
    const auto gigabytes = [](const char *name, FileType type) {
        return static_cast<double>(file_bytes(shape(name), type)) / 1e9;
    };
    // The files on Hugging Face (bartowski, unsloth): 4.92, 8.54, 16.07, 42.5 and 18.6 GB.
    CHECK(gigabytes("Llama-3-8B", FileType::Q4_K_M) == doctest::Approx(4.92).epsilon(0.01));
    CHECK(gigabytes("Llama-3-8B", FileType::Q8_0) == doctest::Approx(8.54).epsilon(0.01));
    CHECK(gigabytes("Llama-3-8B", FileType::F16) == doctest::Approx(16.07).epsilon(0.01));
    CHECK(gigabytes("Llama-3-70B", FileType::Q4_K_M) == doctest::Approx(42.5).epsilon(0.01));
    CHECK(gigabytes("Qwen3-30B-A3B", FileType::Q4_K_M) == doctest::Approx(18.6).epsilon(0.015));
}

TEST_CASE("cost model: estimates are intervals, and more of anything takes longer") {
    const CodeTable code = recorded();
    for (const Device &d : devices())
        for (const Shape &s : shapes())
            for (const FileType type : {FileType::Q4_K_M, FileType::Q8_0, FileType::F16}) {
                CAPTURE(d.name);
                CAPTURE(s.name);
                const Range r = tokens_per_second(s, type, d, code);
                CHECK(r.worst < r.middle);
                CHECK(r.middle < r.best);
                // Never faster than its bytes.
                const TokenCost c = cost_of(s, type, 1, d, code, Case::Optimistic);
                const double floor = static_cast<double>(one_token(s, type).bytes()) / (d.read.best * 1e9);
                CHECK(c.matrices >= floor);
                CHECK(c.matrices >= c.instructions);
            }
    const Device &d = device("H200");
    const MatrixLaunch some{.what = "", .format = TileFormat::Q4_K, .rows = 4096, .cols = 4096};
    MatrixLaunch more = some;
    more.rows += 16;
    CodeTable longer = code;
    for (auto &[key, parts] : longer) parts.around.all += 50;
    for (const Case c : kCases) {
        const double time = cost_of(some, 1, d, code, c).time;
        CHECK(cost_of(more, 1, d, code, c).time > time);
        // Unless there is another limit, which the middle and the pessimistic case have.
        const double by_longer = cost_of(some, 1, d, longer, c).time,
                     of_8 = cost_of(some, 8, d, code, c).time;
        CHECK(by_longer >= time);
        CHECK(of_8 >= time);
        if (c == Case::Optimistic) CHECK(by_longer > time);
        if (c == Case::Optimistic) CHECK(of_8 > time);
    }
    // Whole rounds of tiles are cheaper per tile than one tile more.
    MatrixLaunch whole = some, beyond = some;
    whole.rows = 16 * 264, beyond.rows = 16 * 265;
    CHECK(cost_of(beyond, 1, d, code, Case::Middle).bytes / 265 >
          cost_of(whole, 1, d, code, Case::Middle).bytes / 264);
}

TEST_CASE("cost model: a pipe that is slower than the issue slots sets the time") {
    const CodeTable code = recorded();
    const MatrixLaunch launch{.what = "", .format = TileFormat::Q6_K, .rows = 4096, .cols = 14336};
    Device d = device("H200");
    d.clocks[static_cast<size_t>(Pipe::Integer)] *= 4;  // slower than the limit of converted bytes
    const double before = cost_of(launch, 1, d, code, Case::Middle).instructions;
    d.clocks[static_cast<size_t>(Pipe::Integer)] *= 2;
    const double after = cost_of(launch, 1, d, code, Case::Middle).instructions;
    CHECK(after > 1.7 * before);
    CHECK(after <= 2 * before);
}

namespace {

// Instructions for loop_clocks(): the opcode, the clocks until the next one, the scoreboard that counts it (7: none), and a
// mask of those that it waits for.
struct Line {
    uint64_t opcode;
    int clocks, result;
    uint64_t waits;
};
constexpr uint64_t kWeights = 0x981 | 0x1000, kRead = 0x981, kFromShared = 0x984, kAdd = 0x221, kJump = 0x947;

MachineCode loop_of(const std::vector<Line> &lines) {
    MachineCode code;
    for (const Line &l : lines) {
        code.words.push_back(l.opcode & 0xfff);
        const uint64_t control = static_cast<uint64_t>(l.clocks) | static_cast<uint64_t>(l.result) << 5 |
                                 uint64_t{7} << 8 | l.waits << 11;
        code.controls.push_back(control << 41 | (l.opcode == kWeights ? 1u << 15 : 0u));
    }
    return code;
}

double clocks_of(const std::vector<Line> &lines, int warps, const LoadClocks &loads) {
    return loop_clocks(loop_of(lines), 0, lines.size(), warps, loads);
}

}  // namespace

TEST_CASE("cost model: a loop takes what its stalls, scoreboards and loads take") {
    const std::vector<Line> sums = {{kAdd, 4, 7, 0}, {kAdd, 4, 7, 0}, {kJump, 5, 7, 0}};
    CHECK(clocks_of(sums, 1, {.memory = 900}) == doctest::Approx(4 + 4 + 5 + 6));
    // Several warps fill each other's stalls, until each clock has an instruction.
    CHECK(clocks_of(sums, 4, {.memory = 900}) < 21);
    const std::vector<Line> dense(30, {kAdd, 1, 7, 0});
    CHECK(clocks_of(dense, 1, {.memory = 900}) == doctest::Approx(30));
    CHECK(clocks_of(dense, 4, {.memory = 900}) == doctest::Approx(120).epsilon(0.02));
    // A load and its use.
    const std::vector<Line> weights = {{kWeights, 1, 0, 0}, {kAdd, 1, 7, 1}};
    CHECK(clocks_of(weights, 1, {.memory = 900}) == doctest::Approx(901));
    CHECK(clocks_of(weights, 4, {.memory = 900}) < 910);
    // A read beside weights that nothing waits for yet: from L1, from L1 in order, from shared memory.
    const auto beside = [](uint64_t read) {
        return std::vector<Line>{{kAdd, 1, 7, 1}, {kWeights, 1, 0, 0}, {read, 1, 1, 0}, {kAdd, 1, 7, 2}};
    };
    CHECK(clocks_of(beside(kRead), 1, {.memory = 900, .l1 = 36, .in_order = false}) ==
          doctest::Approx(902).epsilon(0.01));
    std::vector<Line> two = beside(kRead);
    two.push_back({kRead, 1, 1, 0}), two.push_back({kAdd, 1, 7, 2});
    two.front().waits = 0;
    CHECK(clocks_of(two, 1, {.memory = 900}) > 900);
    CHECK(clocks_of(two, 1, {.memory = 900, .in_order = false}) < 90);
    two[2].opcode = two[4].opcode = kFromShared;
    CHECK(clocks_of(two, 1, {.memory = 900}) < 90);
    // Both loads on one scoreboard: the read is there, and still the warp waits for the weights.
    two[1].result = 1;
    CHECK(clocks_of(two, 1, {.memory = 900}) > 900);
}

TEST_CASE("cost model: opcodes of the kernels belong to pipes") {
    CHECK(pipe_of(0x212) == Pipe::Integer);  // LOP3 of registers
    CHECK(pipe_of(0x812) == Pipe::Integer);  // with an immediate
    CHECK(pipe_of(0x223) == Pipe::Float);    // FFMA
    CHECK(pipe_of(0x235) == Pipe::Integer);  // IADD
    CHECK(pipe_of(0x23c) == Pipe::Tensor);   // HMMA
    CHECK(pipe_of(0x981) == Pipe::Global);   // LDG
    CHECK(pipe_of(0x984) == Pipe::Shared);   // LDS
    CHECK(pipe_of(0x947) == Pipe::Other);    // BRA
    const CodeTable code = recorded();
    for (const auto &[key, parts] : code)
        for (const Counts *counts : {&parts.block, &parts.around, &parts.tile, &parts.finish, &parts.start}) {
            double sum = 0;
            for (const double n : counts->pipe) sum += n;
            CHECK(sum == doctest::Approx(counts->all));
        }
    // A block of 16 x 256 weights is 8 mma of 32 columns, or 16 of 16, for each four tokens; Q4_K and Q5_K have two more for their
    // minimums.
    const auto products = [&](int format, int groups) {
        const std::string name =
            "Linear<(TileFormat)" + std::to_string(format) + ", " + std::to_string(groups) + ", false, true>";
        return code.at({90, name}).block.pipe[static_cast<size_t>(Pipe::Tensor)];
    };
    CHECK(products(1, 1) == 16);  // F16
    CHECK(products(1, 2) == 16);
    CHECK(products(7, 1) == 8);  // Q8_0
    CHECK(products(12, 1) == 8 + 2);
    CHECK(products(12, 2) == 2 * (8 + 2));
    CHECK(products(14, 1) == 16);
}

TEST_CASE("cost model: the table of instructions is read as it is written, and damaged ones are refused") {
    std::string compiler;
    const CodeTable table = recorded(compiler);
    for (const Device &d : devices())
        for (const std::string &name : modeled_kernels()) {
            CAPTURE(name);
            CAPTURE(d.code);
            CHECK(table.contains({d.code, name}));
        }
    const std::string text = to_text(table, compiler);
    CHECK(text == text_of("tests/gpu/model/instructions.txt"));
    std::string again;
    CHECK(read_code_table(text, again) == table);
    CHECK(again == compiler);
    const std::string wrong_texts[] = {"", "sm_90\t", text.substr(0, text.size() / 2),
                                       "# x\nsm_90\t128\tblock\t1\t2\tLinear\n",
                                       "# x\nsm_90\t1\tpart" + text};
    for (const std::string &wrong : wrong_texts) {
        CAPTURE(wrong.substr(0, 40));
        CHECK_THROWS_AS(read_code_table(wrong, again), std::runtime_error);
    }
}

TEST_CASE("cost model: the counts are those of the build's machine code") {
    const char *program = std::getenv("RUNNEL");
    const std::filesystem::path build =
        std::filesystem::path(program ? program : "build/runnel").parent_path();
    if (compiler_of(build).empty()) return testing::skip("the build has no device code: there was no nvcc");
    std::string compiler;
    const CodeTable table = recorded(compiler);
    if (compiler != compiler_of(build)) {
        MESSAGE("the compiler is not that of the recorded counts: nothing is compared");
        return;
    }
    int compared = 0;
    for (const std::filesystem::path &object : device_objects(build))
        for (const MachineCode &code : read_machine_code(object)) {
            const auto known = table.find({code.arch, code.name});
            if (known == table.end()) continue;
            CAPTURE(code.name);
            CAPTURE(code.arch);
            const bool same = count_linear(code) == known->second;  // if not: scripts/predict
            CHECK(same);
            ++compared;
        }
    if (compared == 0)
        return testing::skip("the machine code is compressed: build with INSPECT=--no-compress");
}

TEST_CASE("cost model: PREDICTIONS.md is what the model writes") {
    const std::string page = text_of("tests/gpu/PREDICTIONS.md");
    const bool same =
        with_report(page, report(recorded(), measured_code())) == page;  // if not: scripts/predict
    CHECK(same);
    CHECK(with_report(page, "other\n") != page);
    CHECK_THROWS_AS(with_report("no place", ""), std::runtime_error);
}
