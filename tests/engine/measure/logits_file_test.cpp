#include "engine/measure/logits_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "engine/decode/error.h"
#include "engine/measure/perplexity.h"
#include "gguf/writer.h"
#include "tests/support/temporary.h"
#include "tests/support/toy_backend.h"

using namespace runnel::decode;
using namespace runnel::measure;
using namespace runnel::testing;

namespace {

std::vector<double> log_softmax(std::span<const float> logits) {
    double top = -1e300, sum = 0;
    for (const float l : logits) top = std::max(top, double{l});
    for (const float l : logits) sum += std::exp(double{l} - top);
    std::vector<double> result;
    for (const float l : logits) result.push_back(double{l} - top - std::log(sum));
    return result;
}

std::vector<float> random_logits(std::mt19937 &rng, size_t n) {
    std::normal_distribution<float> normal(0, 4);
    std::vector<float> logits(n);
    for (float &l : logits) l = normal(rng);
    return logits;
}

constexpr int32_t kContext = 10, kVocab = 7;  // odd: rows are padded

void write_base(const std::filesystem::path &path, uint32_t seed,
                std::vector<std::vector<float>> *rows = nullptr) {
    std::mt19937 rng(seed);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 2 * kContext; ++i) tokens.push_back(static_cast<TokenId>(rng() % kVocab));
    LogitsWriter writer(path, kContext, kVocab, tokens);
    for (int i = 0; i < 2 * scored_rows(kContext); ++i) {
        const auto logits = random_logits(rng, kVocab);
        writer.write(logits);
        if (rows) rows->push_back(logits);
    }
    writer.commit();
}

}  // namespace

TEST_CASE("logits file: rows are read back to the precision of the codes") {
    const TemporaryDirectory directory;
    std::vector<std::vector<float>> rows;
    write_base(directory / "base", 1, &rows);
    LogitsReader reader(directory / "base", kVocab);
    CHECK(reader.context() == kContext);
    CHECK(reader.chunks() == 2);
    CHECK(reader.tokens().size() == 2 * kContext);
    REQUIRE(rows.size() == 2 * 4);  // positions 5..8 of each chunk
    for (const auto &row : rows) {
        const auto expected = log_softmax(row);
        const auto read = reader.read();
        REQUIRE(read.size() == kVocab);
        const double top = *std::max_element(expected.begin(), expected.end());
        for (size_t i = 0; i < kVocab; ++i)
            CHECK(double{read[i]} == doctest::Approx(std::max(expected[i], top - 16)).epsilon(1e-3));
    }
    // 8 + 12 bytes of header, tokens, rows of 2 floats and 8 codes.
    CHECK(std::filesystem::file_size(directory / "base") == 20 + 4 * 20 + 8 * (8 + 16));
}

TEST_CASE("logits file: a row of equal logits has scale 0") {
    std::vector<uint16_t> row;
    compress_row(std::vector<float>(4, 1.5f), row);
    float floats[2];
    std::memcpy(floats, row.data(), sizeof floats);
    CHECK(floats[0] == 0);
    CHECK(floats[1] == doctest::Approx(-std::log(4.0)));
}

TEST_CASE("logits file: every truncation and any damage is an error, not a crash") {
    const TemporaryDirectory directory;
    write_base(directory / "base", 2);
    const std::vector<std::byte> whole = read_bytes(directory / "base");
    for (size_t size = 0; size < whole.size(); ++size) {
        write_file(directory / "cut", std::span(whole).first(size));
        CAPTURE(size);
        CHECK_THROWS_AS(LogitsReader(directory / "cut", kVocab), DecodeError);
    }
    for (uint32_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        auto bytes = whole;
        for (int i = 0; i < 3; ++i)
            bytes[rng() % std::min<size_t>(bytes.size(), 140)] = static_cast<std::byte>(rng());
        write_file(directory / "bad", bytes);
        try {
            LogitsReader reader(directory / "bad", kVocab);
            for (int64_t i = 0; i < int64_t{reader.chunks()} * scored_rows(reader.context()); ++i)
                reader.read();
        } catch (const DecodeError &error) {
            CHECK(error.kind == DecodeError::Kind::BadInput);
        }
    }
    auto more_than_one = whole;
    const float log_probability = 600;
    std::memcpy(more_than_one.data() + 20 + 4 * 20 + 4, &log_probability, sizeof log_probability);
    write_file(directory / "bad", more_than_one);
    LogitsReader damaged(directory / "bad", kVocab);
    CHECK_THROWS_WITH_AS(damaged.read(), doctest::Contains("a probability above 1"), DecodeError);
    CHECK_THROWS_WITH_AS(LogitsReader(directory / "base", 8), doctest::Contains("vocabulary of 7"),
                         DecodeError);
    CHECK_THROWS_AS(LogitsReader(directory / "absent", 8), DecodeError);
}

TEST_CASE("logits file: without commit, or on a full disk, nothing stays behind") {
    const TemporaryDirectory directory;
    { const LogitsWriter writer(directory / "base", kContext, kVocab, std::vector<TokenId>(kContext, 0)); }
    CHECK(std::filesystem::is_empty(directory.path()));
    LogitsWriter full("/dev/full", kContext, kVocab, std::vector<TokenId>(kContext, 0));
    CHECK_THROWS_AS(full.commit(), runnel::gguf::WriteError);
}

TEST_CASE("perplexity: equals its definition for any batch size; the divergence from itself is 0") {
    const TemporaryDirectory directory;
    const int32_t context = 12;
    std::mt19937 rng(3);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 5 * context; ++i) tokens.push_back(static_cast<TokenId>(rng() % kVocab));

    double sum = 0, squares = 0;
    int count = 0;
    for (int chunk = 0; chunk < 5; ++chunk) {
        std::vector<TokenId> prefix = {1};  // BOS instead of the first token
        for (int p = 0; p + 1 < context; ++p) {
            const TokenId next = tokens[static_cast<size_t>(chunk * context + p + 1)];
            if (p >= context / 2) {
                std::vector<float> logits;
                for (int32_t id = 0; id < kVocab; ++id) logits.push_back(toy_logit(hash_tokens(prefix), id));
                const double x = -log_softmax(logits)[static_cast<size_t>(next)];
                sum += x, squares += x * x, ++count;
            }
            prefix.push_back(next);
        }
    }
    const double mean = sum / count;
    const double error = std::exp(mean) * std::sqrt((squares / count - mean * mean) / (count - 1));
    for (const int32_t batch : {1, 3, 12, 100}) {
        CAPTURE(batch);
        Executor executor(std::make_unique<ToyBackend>(), toy_program(kVocab),
                          {.context = context, .batch = batch, .sequences = 2});
        LogitsWriter writer(directory / "base", context, kVocab, tokens);
        PerplexityRun run(executor, tokens, context, TokenId{1}, &writer, nullptr);
        while (run.done() < run.chunks()) REQUIRE(run.step());
        writer.commit();
        CHECK(run.result().value == doctest::Approx(std::exp(mean)).epsilon(1e-12));
        CHECK(run.result().error == doctest::Approx(error).epsilon(1e-9));
        CHECK(run.result().tokens == count);

        LogitsReader base(directory / "base", kVocab);
        PerplexityRun again(executor, base.tokens(), context, TokenId{1}, nullptr, &base);
        while (again.done() < again.chunks()) REQUIRE(again.step());
        const auto divergence = again.result().divergence.value();
        CHECK(divergence.same_top == 1);
        CHECK(std::abs(divergence.mean) < 2e-5);
        CHECK(std::abs(divergence.largest) < 1e-4);
    }
}

TEST_CASE("perplexity: with a stride, the last positions of overlapping chunks") {
    std::mt19937 rng(5);
    for (int trial = 0; trial < 30; ++trial) {
        CAPTURE(trial);
        const auto context = static_cast<int32_t>(4 + rng() % 12);
        const auto stride = static_cast<int32_t>(1 + rng() % static_cast<uint32_t>(context - 1));
        std::vector<TokenId> tokens;
        for (int32_t i = 0; i < context + static_cast<int32_t>(rng() % 40); ++i)
            tokens.push_back(static_cast<TokenId>(rng() % kVocab));
        double sum = 0;
        int64_t count = 0, chunks = 0;
        for (size_t begin = 0; begin + static_cast<size_t>(context) <= tokens.size();
             begin += static_cast<size_t>(stride), ++chunks) {
            std::vector<TokenId> prefix = {1};
            for (int32_t p = 1; p < context; ++p) {
                const TokenId next = tokens[begin + static_cast<size_t>(p)];
                if (p >= context - stride) {
                    std::vector<float> logits;
                    for (int32_t id = 0; id < kVocab; ++id)
                        logits.push_back(toy_logit(hash_tokens(prefix), id));
                    sum -= log_softmax(logits)[static_cast<size_t>(next)], ++count;
                }
                prefix.push_back(next);
            }
        }
        Executor executor(std::make_unique<ToyBackend>(), toy_program(kVocab),
                          {.context = context, .batch = static_cast<int32_t>(1 + rng() % 20)});
        PerplexityRun run(executor, tokens, Chunks::overlapping(context, stride), TokenId{1});
        CHECK(run.chunks() == chunks);
        while (run.done() < run.chunks()) REQUIRE(run.step());
        CHECK(run.result().tokens == count);
        CHECK(run.result().value ==
              doctest::Approx(std::exp(sum / static_cast<double>(count))).epsilon(1e-12));
    }
}
