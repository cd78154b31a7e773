// nvcc's PTX (RUNNEL_PTX; `make ptx-sample`), and faults injected into it, each of which a launch must find.
#include "tests/ptx/replay.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "kernels/cuda/steps/elementwise.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;

namespace {

const bool kNoText = std::getenv("RUNNEL_PTX") == nullptr;
const char *const kSoftcap = "Softcap", *const kBytes = "Linear<(TileFormat)14, 1, false, true>",
                  *const kHalves = "Linear<(TileFormat)12, 2, true, false>";

// The PTX file of a kernel with every match of the pattern replaced.
std::string changed(const std::string &kernel, const std::string &pattern, const std::string &by) {
    const std::string file = ptx::replay()->file_of(kernel);
    REQUIRE_MESSAGE(!file.empty(), kernel);
    std::ifstream in(file);
    const std::regex wanted(pattern);
    std::string text;
    bool found = false;
    for (std::string line; std::getline(in, line); text += '\n') {
        found = found || std::regex_search(line, wanted);
        text += std::regex_replace(line, wanted, by);
    }
    REQUIRE_MESSAGE(found, pattern);
    return text;
}

// Whether the kernel's PTX is for sm_90 or later.
bool knows_dependent_launches(const std::string &kernel) {
    std::ifstream in(ptx::replay()->file_of(kernel));
    std::smatch target;
    for (std::string line; std::getline(in, line);)
        if (std::regex_search(line, target, std::regex("^\\.target sm_(\\d+)")))
            return std::stoi(target[1]) >= 90;
    FAIL("no target");
    return false;
}

void run_softcap() {
    Stream stream;
    std::vector<float> x(200);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 16 - 5;
    const simt::Buffer<float> buffer(stream, x, "x");
    simt::run_kernel(stream, softcap_kernel(), {2, 0}, {buffer.data(), 200, 3.0f});
    stream.wait();
}

void run_linear(gguf::Type type, LinearVersion version) {
    Stream stream;
    std::mt19937 random(3);
    const Matrix matrix(stream, type, 21, 512, random);
    const Input input(stream, random_activations(2 * 512, random), 512, 2);
    const DeviceMemory out = upload(stream, std::vector<float>(42), "out");
    LinearParams p = params_for(input, 2);
    p.matrices = 1;
    p.matrix[0] = {matrix.tiles.data(), nullptr, nullptr, out.as<float>(), 0, 21, 21};
    const TileFormat format = tile_format(type);
    simt::run_kernel(stream, linear_kernel(format, version), {2, linear_shared(format, version, p)}, p);
    stream.wait();
}
void run_bytes() {
    run_linear(gguf::Type::Q6_K, {.tokens = 2, .staged = true});
}
void run_halves() {
    run_linear(gguf::Type::Q4_K, {.tokens = kLinearGroupTokens, .grouped = true});
}

// The error of the launches with this PTX; empty if there is none.
std::string found(const std::string &text, void (*launches)()) {
    const testing::TemporaryDirectory folder;
    const std::filesystem::path file = folder / "changed.ptx";
    std::ofstream(file) << text;
    ptx::Replay replay({file});
    simt::observe_launches(&replay);
    std::string error;
    try {
        launches();
    } catch (const simt::Violation &e) {
        error = e.what();
    }
    simt::observe_launches(ptx::replay());
    return error;
}

}  // namespace

TEST_CASE("ptx: every entry of nvcc's PTX is supported" * doctest::skip(kNoText)) {
    CHECK_NOTHROW(ptx::replay()->compile_all());
}

TEST_CASE("ptx: faults injected into a kernel's PTX are found in its launch" * doctest::skip(kNoText)) {
    const auto softcap = [](const std::string &pattern, const std::string &by) {
        return found(changed(kSoftcap, pattern, by), run_softcap);
    };
    const auto bytes = [](const std::string &pattern, const std::string &by) {
        return found(changed(kBytes, pattern, by), run_bytes);
    };
    const auto halves = [](const std::string &pattern, const std::string &by) {
        return found(changed(kHalves, pattern, by), run_halves);
    };
    const auto differs = [](const std::string &error) {
        return error.find("the emulator") != std::string::npos;
    };
    const auto says = [](const std::string &error, const char *words) {
        return error.find(words) != std::string::npos;
    };
    CHECK(softcap("no such thing|$", "") == "");
    CHECK(bytes("no such thing|$", "") == "");
    CHECK(halves("no such thing|$", "") == "");
    // The kernel writes the values that it reads.
    CHECK(says(softcap("ld\\.global\\.f32", "ld.global.nc.f32"), ".nc"));
    if (knows_dependent_launches(kSoftcap)) {
        CHECK(says(softcap("griddepcontrol\\.wait;", ""), "griddepcontrol.wait"));
        CHECK(says(bytes("griddepcontrol\\.wait;", ""), "griddepcontrol.wait"));
    }
    // Operands in the wrong order.
    CHECK(differs(halves("sub\\.rn\\.f16x2 (\\S+), (\\S+), (\\S+);", "sub.rn.f16x2 $1, $3, $2;")));
    CHECK(
        differs(bytes("lop3\\.b32 (\\S+), (\\S+), (\\S+), (\\S+), 0x6a;", "lop3.b32 $1, $4, $3, $2, 0x6a;")));
    CHECK(differs(bytes("0x6a;", "0xea;")));  // or in place of exclusive or
    // Fragments in the wrong order: A's rows and columns + 8, A's rows + 8, B's halves.
    const std::string mma =
        "(mma\\.sync\\S+ \\{[^}]*\\}, )\\{(\\S+), (\\S+), (\\S+), (\\S+)\\}, \\{(\\S+), (\\S+)\\}";
    CHECK(differs(halves(mma, "$1{$2, $4, $3, $5}, {$6, $7}")));
    CHECK(differs(halves(mma, "$1{$3, $2, $5, $4}, {$6, $7}")));
    CHECK(differs(halves(mma, "$1{$2, $3, $4, $5}, {$7, $6}")));
    CHECK(differs(bytes("(mma\\.sync\\S+s8\\S+ \\{[^}]*\\}, )\\{(\\S+), (\\S+)\\}", "$1{$3, $2}")));
}
