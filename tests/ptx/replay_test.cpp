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
const char *const kSoftcap = "Softcap", *const kLinear = "Linear<(TileFormat)14, 1, false, true>";

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

void run_linear() {
    Stream stream;
    std::mt19937 random(3);
    const Matrix matrix(stream, gguf::Type::Q6_K, 21, 512, random);
    const Input input(stream, random_activations(2 * 512, random), 512, 2);
    const DeviceMemory out = upload(stream, std::vector<float>(42), "out");
    LinearParams p = params_for(input, 2);
    p.matrices = 1;
    p.matrix[0] = {matrix.tiles.data(), nullptr, nullptr, out.as<float>(), 0, 21, 21};
    constexpr LinearVersion kVersion{.tokens = 2, .staged = true};
    simt::run_kernel(stream, linear_kernel(TileFormat::Q6_K, kVersion),
                     {2, linear_shared(TileFormat::Q6_K, kVersion, p)}, p);
    stream.wait();
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
    const auto linear = [](const std::string &pattern, const std::string &by) {
        return found(changed(kLinear, pattern, by), run_linear);
    };
    const auto differs = [](const std::string &error) {
        return error.find("the emulator") != std::string::npos;
    };
    const auto says = [](const std::string &error, const char *words) {
        return error.find(words) != std::string::npos;
    };
    CHECK(softcap("no such thing|$", "") == "");
    CHECK(linear("no such thing|$", "") == "");
    // The kernel writes the values that it reads.
    CHECK(says(softcap("ld\\.global\\.f32", "ld.global.nc.f32"), ".nc"));
    if (knows_dependent_launches(kSoftcap)) {
        CHECK(says(softcap("griddepcontrol\\.wait;", ""), "griddepcontrol.wait"));
        CHECK(says(linear("griddepcontrol\\.wait;", ""), "griddepcontrol.wait"));
    }
    // Operands in the wrong order.
    CHECK(differs(linear("sub\\.rn\\.f16x2 (\\S+), (\\S+), (\\S+);", "sub.rn.f16x2 $1, $3, $2;")));
    // Fragments in the wrong order: A's rows and columns + 8, A's rows + 8, B's halves.
    const std::string mma =
        "(mma\\.sync\\S+ \\{[^}]*\\}, )\\{(\\S+), (\\S+), (\\S+), (\\S+)\\}, \\{(\\S+), (\\S+)\\}";
    CHECK(differs(linear(mma, "$1{$2, $4, $3, $5}, {$6, $7}")));
    CHECK(differs(linear(mma, "$1{$3, $2, $5, $4}, {$6, $7}")));
    CHECK(differs(linear(mma, "$1{$2, $3, $4, $5}, {$7, $6}")));
}
