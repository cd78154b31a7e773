// Rotate: signs and the Walsh-Hadamard matrix of each block of a row.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/reference/operations.h"
#include "kernels/steps.h"

using namespace runnel::kernels;

namespace {

struct RotateProblem {
    int32_t block, width, tokens;
    bool has_signs, signs_last, in_place;
    std::vector<float> signs, in;  // [width], [tokens][width]
};

RotateProblem random_problem(int32_t block, int32_t blocks, std::mt19937 &random) {
    RotateProblem p{block,
                    block * blocks,
                    1 + static_cast<int32_t>(random() % 4),
                    random() % 3 > 0,
                    random() % 2 > 0,
                    random() % 2 > 0,
                    {},
                    {}};
    std::normal_distribution<float> value(0, 1);
    for (int32_t i = 0; i < p.width; ++i) p.signs.push_back(random() % 2 ? 1.0f : -1.0f);
    for (int32_t i = 0; i < p.width * p.tokens; ++i) p.in.push_back(value(random));
    return p;
}

Program program_of(const RotateProblem &p) {
    Program program;
    program.slots = {{"in", p.width}, {"out", p.width}};
    Rotate step{0, p.in_place ? 0 : 1, p.block};
    step.signs_last = p.signs_last;
    if (p.has_signs) {
        program.weights = {{"signs", runnel::gguf::Type::F32, 1, p.width,
                            reinterpret_cast<const std::byte *>(p.signs.data())}};
        step.signs = 0;
    }
    program.steps = {step};
    program.parts = {{1, {0}, {step.out}}};
    return program;
}

std::vector<float> run(Backend &backend, const RotateProblem &p) {
    const Program program = program_of(p);
    backend.load(program, {}, p.tokens);
    const auto rows = static_cast<size_t>(p.tokens), width = static_cast<size_t>(p.width);
    const auto at = [&](const SlotRows &slot, size_t t) {
        return slot.data + static_cast<int64_t>(t) * slot.stride;
    };
    const SlotRows in = backend.exchange(0);
    for (size_t t = 0; t < rows; ++t) std::copy_n(p.in.data() + t * width, width, at(in, t));
    const std::vector<int32_t> ids(rows, 0);
    const SequenceSpan span{0, p.tokens, 0, {}};
    REQUIRE(backend.execute({ids, ids, {&span, 1}, {}}, {}));
    const SlotRows out = backend.exchange(program.parts[0].out[0]);
    std::vector<float> all;
    for (size_t t = 0; t < rows; ++t) all.insert(all.end(), at(out, t), at(out, t) + width);
    return all;
}

std::vector<double> by_reference(const RotateProblem &p) {
    const auto step = std::get<Rotate>(program_of(p).steps[0]);
    const std::vector<double> in(p.in.begin(), p.in.end());
    const std::vector<double> signs(p.signs.begin(), p.has_signs ? p.signs.end() : p.signs.begin());
    std::vector<double> out;
    for (size_t at = 0; at < in.size(); at += static_cast<size_t>(p.width)) {
        const auto row =
            reference::rotate(step, std::span(in).subspan(at, static_cast<size_t>(p.width)), signs);
        out.insert(out.end(), row.begin(), row.end());
    }
    return out;
}

// A product with the whole matrix: (-1)^(bits that row and column have in common) / sqrt(block).
std::vector<double> by_matrix(const RotateProblem &p) {
    std::vector<double> x(p.in.begin(), p.in.end()), out(x.size());
    const auto block = static_cast<size_t>(p.block), width = static_cast<size_t>(p.width);
    const auto sign = [&](size_t i) { return p.has_signs ? double{p.signs[i % width]} : 1.0; };
    for (size_t i = 0; i < x.size() && !p.signs_last; ++i) x[i] *= sign(i);
    for (size_t i = 0; i < x.size(); ++i) {
        const size_t row = i % block, first = i - row;
        for (size_t col = 0; col < block; ++col)
            out[i] += __builtin_popcountll(row & col) % 2 == 0 ? x[first + col] : -x[first + col];
        out[i] /= std::sqrt(static_cast<double>(block));
        if (p.signs_last) out[i] *= sign(i);
    }
    return out;
}

template <class T>
double error_of(const std::vector<T> &got, const std::vector<double> &expected) {
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

}  // namespace

TEST_CASE("rotate: random widths and blocks agree with the dense matrix, with the same bits on all devices") {
    std::mt19937 random(1);
    for (int round = 0; round < 26; ++round) {
        const int32_t block = 1 << (1 + round % 13);  // up to 8,192
        const RotateProblem p =
            random_problem(block, 1 + static_cast<int32_t>(random() % (block < 512 ? 9 : 2)), random);
        CAPTURE(p.block);
        CAPTURE(p.width);
        CAPTURE(p.tokens);
        CAPTURE(p.has_signs);
        CAPTURE(p.signs_last);
        const std::vector<float> scalar = run(*cpu::make_cpu_backend(1, "scalar"), p);
        if (block <= 512) {
            const std::vector<double> expected = by_matrix(p);
            CHECK(error_of(scalar, expected) < 3e-6);
            CHECK(error_of(by_reference(p), expected) < 1e-12);
        }
        for (const char *isa : {"avx2", "avx512"}) try {
                CHECK(run(*cpu::make_cpu_backend(2, isa), p) == scalar);
            } catch (const BackendError &) {
                MESSAGE("this CPU has no " << std::string(isa));
            }
        if (block <= 4096) CHECK(run(*cuda::make_cuda_backend(0), p) == scalar);
    }
}

TEST_CASE("rotate: twice gives the row back, and blocks larger than the GPU's are refused there") {
    std::mt19937 random(2);
    RotateProblem p = random_problem(1024, 5, random);
    p.has_signs = true, p.signs_last = false;
    RotateProblem back = p;
    back.in = run(*cpu::make_cpu_backend(1), p);
    back.signs_last = true;
    CHECK(error_of(run(*cpu::make_cpu_backend(1), back), {p.in.begin(), p.in.end()}) < 3e-6);
    const auto missing = [&](int32_t block) {
        return cuda::missing_kernels(program_of(random_problem(block, 1, random)))[0];
    };
    CHECK(missing(4096) == "");
    CHECK(missing(8192) == "the GPU has no kernel for rotations in blocks of this size yet");
}
