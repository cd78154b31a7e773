// Damaged models, from the file to a computed token: a file that still opens as GGUF must build, tokenize and
// compute a token, or be refused with one printable line.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "engine/cache/block_table.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/damage.h"
#include "tests/support/model_maker.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

using Bytes = std::vector<std::byte>;

struct Outcome {
    bool ran = false;
    std::string refusal;
};

void compute_two_tokens(const model::Model &model, std::span<const int32_t> tokens) {
    const auto backend = kernels::cpu::make_cpu_backend(1);
    backend->load(model.program, {{1}}, 2);
    cache::BlockPool pool(1);
    cache::BlockTable sequence(pool);
    REQUIRE(sequence.append(2));
    const std::vector<int32_t> positions = {0, 1}, rows = {1};
    const kernels::SequenceSpan span{0, 2, 0, {sequence.table()}};
    std::vector<float> logits(static_cast<size_t>(model.program.vocab));
    CHECK(backend->execute({tokens, positions, {&span, 1}, rows}, logits));
}

Outcome use(const Bytes &bytes) {
    try {
        const gguf::File file = gguf::File::from_bytes(bytes, "broken");
        const model::Model model = model::build(file);
        const text::Tokenizer tokenizer = text::Tokenizer::load(file);
        std::vector<int32_t> tokens = tokenizer.encode("a story");
        tokens.resize(2, 0);
        for (int32_t &token : tokens)
            token = std::min(token, static_cast<int32_t>(model.program.weights[0].rows - 1));
        compute_two_tokens(model, tokens);
        return {true, {}};
    } catch (const gguf::FileError &error) {
        return {false, error.what()};
    } catch (const model::ModelError &error) {
        return {false, error.what()};
    } catch (const text::TokenizerError &error) {
        return {false, error.what()};
    }
}

void check(const Outcome &outcome) {
    if (outcome.ran) return;
    CAPTURE(outcome.refusal);
    CHECK(outcome.refusal.size() > 10);
    CHECK(outcome.refusal.size() < 600);
    CHECK(std::all_of(outcome.refusal.begin(), outcome.refusal.end(),
                      [](char c) { return c >= 0x20 && c < 0x7f; }));
}

Bytes model_bytes(const std::string &type) {
    ModelShape shape;
    shape.layers = 1, shape.width = 32, shape.ff = 32, shape.vocab = 260, shape.context = 64,
    shape.type = type;
    const TemporaryModel model(shape);
    return read_bytes(model.path);
}

}  // namespace

TEST_CASE("fuzz: every truncation of a model's header, and many of its data, is refused") {
    const Bytes whole = model_bytes("Q8_0");
    REQUIRE(use(whole).ran);
    const size_t header = std::min<size_t>(whole.size(), 6000);
    uint64_t end = 0;  // of the data: padding may follow
    const gguf::File file = gguf::File::from_bytes(whole, "whole");
    for (const gguf::Tensor &t : file.tensors()) end = std::max(end, t.offset + t.bytes);
    for (size_t size = 0; size < end; size += size < header ? 1 : 97) {
        CAPTURE(size);
        const Outcome outcome = use(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)));
        CHECK_FALSE(outcome.ran);
        check(outcome);
    }
}

TEST_CASE("fuzz: ten thousand damaged models run or are refused") {
    const uint64_t seed = 20261121;
    CAPTURE(seed);
    Random random(seed);
    const Bytes whole = model_bytes("F32");
    REQUIRE(use(whole).ran);
    int ran = 0, refused = 0;
    for (int round = 0; round < 10000; ++round) {
        CAPTURE(round);
        Bytes bytes = whole;
        // Most edits change the header: metadata, vocabulary and tensor table, where every byte has an effect. Only
        // the first `reach` bytes are mutated; the rest is appended unchanged.
        for (uint64_t edits = 1 + random.below(3); edits > 0; --edits) {
            const size_t header = std::min<size_t>(9000, bytes.size());
            const size_t reach = random.below(8) == 0 ? bytes.size() : header;
            Bytes piece(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(reach));
            mutate(piece, random);
            piece.insert(piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(reach), bytes.end());
            bytes = std::move(piece);
        }
        const Outcome outcome = use(bytes);
        check(outcome);
        (outcome.ran ? ran : refused) += 1;
    }
    MESSAGE("fuzz: " << ran << " ran, " << refused << " refused");
    CHECK(ran > 100);
    CHECK(refused > 1000);
}
