// Every family: its files load, the CPU agrees with the double-precision reference, and the logits agree with
// those that llama.cpp computed for the same file.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/cache/block_pool.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/engine/model/peer_results.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

constexpr int32_t kBlocks = 8;

// Logits of every token.
std::vector<std::vector<float>> compute(const kernels::Program &program, std::span<const int32_t> tokens) {
    size_t groups = 0;
    for (const kernels::CacheLayer &layer : program.cache_layers)
        groups = std::max(groups, static_cast<size_t>(layer.group) + 1);
    const auto backend = kernels::cpu::make_cpu_backend(1);
    const auto count = static_cast<int32_t>(tokens.size());
    backend->load(program, {.blocks = std::vector<int32_t>(groups, kBlocks), .states = 1}, count);
    std::vector<kernels::BlockId> table(kBlocks);
    std::iota(table.begin(), table.end(), 0);
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    kernels::SequenceSpan span{0, count, 0, {}};
    span.tables.assign(groups, table);
    span.state_writes = {{count, 0}};
    const size_t vocab = static_cast<size_t>(program.vocab);
    std::vector<float> logits(tokens.size() * vocab);
    REQUIRE(backend->execute({tokens, positions, {&span, 1}, positions}, logits));
    std::vector<std::vector<float>> rows;
    for (size_t t = 0; t < tokens.size(); ++t)
        rows.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(t * vocab),
                          logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * vocab));
    return rows;
}

ModelShape tiny(const std::string &arch) {
    ModelShape shape;
    shape.arch = arch, shape.layers = 7, shape.width = 32, shape.ff = 40, shape.heads = 4, shape.vocab = 260,
    shape.context = 128, shape.threads = 1;
    if (arch == "llama4") shape.sliding_window = 24;  // chunks
    shape.experts.used = 8;  // all experts: a choice between equally good ones would depend on rounding
    return shape;
}

// The models of scripts/verify-families.
ModelShape as_recorded(const std::string &arch) {
    ModelShape shape;
    shape.arch = arch, shape.width = 64, shape.ff = 96;
    shape.layers = arch == "gemma2"           ? 26
                   : arch == "gemma3n"        ? 22
                   : arch == "exaone4-32b"    ? 64
                   : arch == "deepseek2-lite" ? 27
                   : arch == "baichuan"       ? 32
                   : arch == "baichuan-13b"   ? 40
                                              : 7;
    shape.heads = 4, shape.kv_heads = 2, shape.vocab = 320, shape.context = 512, shape.seed = 11;
    for (const char *same : {"dots1", "qwen", "cogvlm", "deepseek2-ocr", "olmo2", "olmo3", "olmoe", "gpt2",
                             "gptneox", "gptneox-sequential", "phi2"})
        if (arch == same) shape.kv_heads = 4;
    if (arch == "gemma4-26b" || arch == "deepseek2-lite") shape.experts.used = 8;
    shape.threads = 1;
    return shape;
}

}  // namespace

TEST_CASE("families: the CPU's results agree with double precision") {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 70; ++i) tokens.push_back((i * 37 + i * i) % 260);
    for (const FamilyFiles &family : family_files()) {
        CAPTURE(family.name);
        const TemporaryModel file(tiny(family.name));
        const model::Model model = model::build(file.file);
        const auto expected = tests::reference_logits(model.program, tokens);
        const auto got = compute(model.program, tokens);
        for (size_t t = 0; t < tokens.size(); ++t)
            for (size_t v = 0; v < expected[t].size(); ++v) {
                CAPTURE(t);
                REQUIRE(double{got[t][v]} == doctest::Approx(expected[t][v]).epsilon(4e-3).scale(4));
            }
    }
}

// The peer's own rounding, mainly of binary16 products in attention, is a few thousandths; a family that is
// implemented wrongly differs by at least tenths.
TEST_CASE("families: logits agree with those of peers for the same file") {
    REQUIRE(tests::peer_results().size() > 25);
    const auto tokens = tests::peer_tokens().first(tests::peer_tokens().size() - 1);
    for (const tests::PeerResult &peer : tests::peer_results()) {
        CAPTURE(peer.family);
        const TemporaryModel file(as_recorded(std::string(peer.family)));
        const model::Model model = model::build(file.file);
        const std::vector<float> logits = compute(model.program, tokens).back();
        const reference::Row plain = tests::reference_logits(model.program, tokens).back();
        const double total = reference::log_sum_exp(reference::to_row(logits)),
                     plain_total = reference::log_sum_exp(plain);
        for (size_t i = 0; i < 8; ++i) {
            CAPTURE(i);
            CHECK(std::fabs(double{logits[i]} - total - peer.log_probabilities[i]) < 0.03);
            CHECK(std::fabs(plain[i] - plain_total - peer.log_probabilities[i]) < 0.03);
        }
    }
}

TEST_CASE("families: every supported architecture is tested here") {
    for (const std::string_view architecture : model::supported_architectures()) {
        CAPTURE(architecture);
        CHECK(std::any_of(family_files().begin(), family_files().end(),
                          [&](const FamilyFiles &f) { return f.arch == architecture; }));
    }
}
