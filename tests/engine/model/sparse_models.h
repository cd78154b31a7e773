// Small models with sparse attention, and runs of them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/steps.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"

namespace runnel::tests::sparse {

using namespace kernels;
using namespace testing;

inline constexpr int32_t kLong = 402;  // a context beyond every top_k here

inline ModelShape shape_of(const std::string &arch, int64_t top_k, int64_t period = 1, uint64_t seed = 1) {
    ModelShape shape;
    shape.arch = arch, shape.layers = arch == "minimax-m3" ? 2 : 4, shape.width = 32, shape.ff = 40,
    shape.vocab = 260;
    shape.context = 512, shape.threads = 1, shape.seed = seed;
    shape.experts.used = 8;  // all: a choice between equally good ones would depend on rounding
    shape.indexer_heads = 16, shape.indexer_top_k = top_k, shape.indexer_period = period;
    shape.indexer_block = 6;  // of minimax-m3
    return shape;
}

inline std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char *name : {"scalar", "avx2", "avx512"}) try {
            (void)cpu::make_cpu_backend(1, name);
            names.emplace_back(name);
        } catch (const BackendError &) {
            MESSAGE("this CPU has no " << std::string(name));
        }
    return names;
}

inline std::vector<TextLogits> run(std::unique_ptr<Backend> backend, const Program &program,
                                   const RecurrentTexts &texts, std::mt19937 *random,
                                   CacheType type = CacheType::F16) {
    CacheConfig cache = texts.cache();
    cache.k = cache.v = type;
    backend->load(program, cache, texts.max_tokens());
    return texts.run(*backend, random);
}

inline std::vector<TextLogits> run(const Program &program, const RecurrentTexts &texts, int threads,
                                   const std::string &instructions, std::mt19937 *random,
                                   CacheType type = CacheType::F16) {
    return run(cpu::make_cpu_backend(threads, instructions), program, texts, random, type);
}

// The devices that have all kernels of these models.
struct TestDevice {
    const char *name;
    std::unique_ptr<Backend> (*make)();
};
inline constexpr TestDevice kCpu{"CPU", [] { return cpu::make_cpu_backend(2); }},
    kGpu{"GPU", [] { return cuda::make_cuda_backend(0); }};

// One token at a time or several, in the blocks of `table`; the logits of all.
inline std::vector<float> feed(Backend &backend, const Program &program, std::span<const int32_t> tokens,
                               int32_t past, std::span<const BlockId> table) {
    std::vector<int32_t> positions(tokens.size()), rows(tokens.size());
    std::iota(positions.begin(), positions.end(), past);
    std::iota(rows.begin(), rows.end(), 0);
    SequenceSpan span{0, static_cast<int32_t>(tokens.size()), past, {table}};
    std::vector<float> logits(tokens.size() * static_cast<size_t>(program.vocab));
    REQUIRE(backend.execute({tokens, positions, {&span, 1}, rows}, logits));
    return logits;
}

// Two programs give the same bits, with every instruction set and however texts are cut.
inline void check_same_programs(const Program &one, const Program &other,
                                const std::vector<std::vector<int32_t>> &texts, std::mt19937 &random) {
    const RecurrentTexts of_one(one, texts), of_other(other, texts);
    for (const std::string &isa : instruction_sets()) {
        CAPTURE(isa);
        const auto expected = run(one, of_one, 1, isa, nullptr);
        check_same(run(other, of_other, 2, isa, nullptr), expected);
        check_same(run(other, of_other, 1, isa, &random), expected);
    }
}

inline int64_t count_indexers(const Program &program) {
    int64_t count = 0;
    for_each_step<Indexer>(program, [&](const Indexer &) { ++count; });
    return count;
}

inline std::string refusal(const EditedModel &model, int64_t context) {
    try {
        model::build(gguf::File::open(model.write()), context);
    } catch (const model::ModelError &error) {
        return error.what();
    }
    return "";
}

// With `value`, the key is refused; the message names it and says why.
inline void check_refused(EditedModel model, const std::string &key, const auto &value, int64_t context,
                          const char *why) {
    CAPTURE(key);
    const std::string error = refusal(model.set(key, value), context);
    CAPTURE(error);
    CHECK(error.find(key + ": ") != std::string::npos);
    CHECK(error.find(why) != std::string::npos);
}

// Checks the program's logits for a text: they agree with double precision, which is returned. Those of the first `same` tokens
// have the bits of `dense`; later ones differ.
inline auto check_sparse_logits(const Program &program, const Program &dense,
                                const std::vector<int32_t> &text, size_t same) {
    const auto got = run(program, RecurrentTexts(program, {text}), 1, "scalar", nullptr)[0],
               without = run(dense, RecurrentTexts(dense, {text}), 1, "scalar", nullptr)[0];
    auto expected = reference_logits(program, text);
    double far = 0;
    for (size_t t = 0; t < text.size(); ++t) {
        CAPTURE(t);
        for (size_t v = 0; v < expected[t].size(); ++v) {
            REQUIRE(double{got[t][v]} == doctest::Approx(expected[t][v]).epsilon(4e-3).scale(4));
            far = std::max(far, std::fabs(double{got[t][v]} - double{without[t][v]}));
        }
        if (t < same) CHECK(same_bits(got[t], without[t]));
    }
    CHECK(far > 0.1);
    return expected;
}

}  // namespace runnel::tests::sparse
