#include "engine/decode/speculation/draft_vocabulary.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/decode/speculation/translated_draft.h"
#include "gguf/file.h"
#include "gguf/writer.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/model_vocabulary.h"
#include "tests/support/random.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

using namespace runnel::decode;
using namespace runnel::testing;
namespace gguf = runnel::gguf;
namespace text = runnel::text;

namespace {

using Kind = DraftVocabulary::Kind;
using Text = std::vector<TokenId>;

// A file with a SentencePiece vocabulary of these pieces: <unk>, <s>, </s>, 256 bytes, the rest.
struct PieceFile {
    TemporaryDirectory directory;
    gguf::File file;
    text::Tokenizer tokenizer;

    explicit PieceFile(const std::vector<std::string> &pieces)
        : file(written(pieces, directory / "vocab.gguf")), tokenizer(text::Tokenizer::load(file)) {}

    static gguf::File written(const std::vector<std::string> &pieces, const std::filesystem::path &path) {
        gguf::Array tokens(gguf::ValueType::String), scores(gguf::ValueType::F32),
            types(gguf::ValueType::I32);
        for (size_t id = 0; id < pieces.size(); ++id) {
            tokens.push(pieces[id]);
            scores.push(id < 259 ? 0.0f : -static_cast<float>(id));
            types.push(id == 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1);
        }
        gguf::Writer writer;
        writer.add("general.architecture", "llama");
        writer.add("tokenizer.ggml.model", "llama");
        writer.add("tokenizer.ggml.tokens", tokens);
        writer.add("tokenizer.ggml.scores", scores);
        writer.add("tokenizer.ggml.token_type", types);
        writer.add("tokenizer.ggml.bos_token_id", 1u);
        writer.add("tokenizer.ggml.eos_token_id", 2u);
        writer.add("tokenizer.ggml.unknown_token_id", 0u);
        writer.start(path);
        writer.finish();
        return gguf::File::open(path);
    }
};

DraftVocabulary compare(const text::Tokenizer &target, const text::Tokenizer &draft) {
    return DraftVocabulary(target, target.size(), draft, draft.size());
}

// Drafts a given answer, and records the text that it was given.
struct Told final : DraftSource {
    Text answer, asked;
    std::vector<Distribution> distributions;
    const Sampler *sampler = nullptr;

    Draft draft(std::span<const TokenId> text, int32_t most, float, Sampler &with) override {
        asked.assign(text.begin(), text.end());
        sampler = &with;
        Draft draft;
        for (size_t i = 0; i < answer.size() && static_cast<int32_t>(i) < most; ++i) {
            draft.tokens.push_back(answer[i]);
            draft.probabilities.push_back(0.5f + 0.01f * static_cast<float>(i));
        }
        draft.distributions = distributions;
        return draft;
    }
    std::string_view name() const override { return "told"; }
};

// Knows the whole text, and drafts it in the tokens of another vocabulary.
struct Reciter final : DraftSource {
    std::string whole;
    const text::Tokenizer *tokenizer;
    std::vector<Text> asked;

    Reciter(std::string text, const text::Tokenizer &with) : whole(std::move(text)), tokenizer(&with) {}

    Draft draft(std::span<const TokenId> text, int32_t most, float, Sampler &) override {
        asked.emplace_back(text.begin(), text.end());
        std::string bytes;
        for (const TokenId id : text) bytes += tokenizer->decode(id);
        REQUIRE(whole.starts_with(bytes));  // the bridge passed on the text so far, byte for byte
        Draft draft;
        draft.tokens =
            tokenizer->encode(whole.substr(bytes.size()), {.add_special = false, .continues = true});
        if (draft.tokens.size() <= static_cast<size_t>(most) && tokenizer->eos())
            draft.tokens.push_back(*tokenizer->eos());
        draft.tokens.resize(std::min(draft.tokens.size(), static_cast<size_t>(most)));
        draft.probabilities.assign(draft.tokens.size(), 0.9f);
        return draft;
    }
    std::string_view name() const override { return "reciter"; }
};

}  // namespace

TEST_CASE("draft vocabulary: equal tokens are recognized, whichever program wrote the file") {
    const PieceFile a(made_up_pieces(400)), b(made_up_pieces(400));
    const DraftVocabulary same = compare(a.tokenizer, b.tokenizer);
    CHECK(same.kind() == Kind::Same);
    CHECK(same.note().empty());
    for (TokenId id = 0; id < 400; ++id) {
        REQUIRE(same.to_draft(id) == id);
        REQUIRE(same.to_target(id) == id);
        REQUIRE(same.readable(id) == id);
    }
    CHECK(same.to_draft(-1) == text::kNoToken);
    CHECK(same.to_target(400) == text::kNoToken);
    auto source = std::make_unique<Told>();
    const DraftSource *raw = source.get();
    CHECK(translated(std::move(source), same).get() == raw);

    // Rows of the outputs after the vocabulary are padding.
    CHECK(DraftVocabulary(a.tokenizer, 512, b.tokenizer, 448).kind() == Kind::Same);
}

TEST_CASE("draft vocabulary: the few tokens that differ are not drafted") {
    std::vector<std::string> pieces = made_up_pieces(400);
    const PieceFile target(pieces);
    pieces[390] = "\x1b[31mred";  // untrusted: goes to a terminal in the note
    pieces.push_back("extra");
    const PieceFile draft(pieces);
    const DraftVocabulary differing = compare(target.tokenizer, draft.tokenizer);
    CHECK(differing.kind() == Kind::Mapped);
    CHECK(differing.to_target(390) == text::kNoToken);
    CHECK(differing.to_target(400) == text::kNoToken);
    CHECK(differing.to_draft(390) == text::kNoToken);
    CHECK(differing.readable(390) >= 0);
    CHECK(differing.readable(390) < 401);
    CHECK(differing.to_target(391) == 391);
    CHECK(differing.note().find("2 of its 401") != std::string::npos);
    CHECK(differing.note().find("390: ") != std::string::npos);
    CHECK(differing.note().find('\x1b') == std::string::npos);

    auto source = std::make_unique<Told>();
    Told &told = *source;
    const auto ids = translated(std::move(source), differing);
    Sampler sampler({.temperature = 0, .logit_bias = {{5, 1.0f}, {390, 2.0f}}}, 400);
    told.answer = {270, 271, 390, 272};
    told.distributions.assign(4, Distribution{{{390, 0, 0.5}, {270, 0, 0.3}, {271, 0, 0.2}}});
    const Draft out = ids->draft(Text{1, 300, 390}, 8, 0, sampler);
    CHECK(told.asked == Text{1, 300, differing.readable(390)});
    CHECK(out.tokens == Text{270, 271});
    REQUIRE(out.probabilities.size() == 2);
    REQUIRE(out.distributions.size() == 2);
    CHECK(out.distributions[0].probability_of(390) == 0);
    CHECK(out.distributions[0].probability_of(270) == doctest::Approx(0.6));
    // The draft model samples from its own 401 rows, with the biases of tokens that it has.
    REQUIRE(told.sampler != nullptr);
    const auto &biases = told.sampler->options().logit_bias;
    CHECK(std::ranges::count(biases, std::pair<TokenId, float>(5, 1.0f)) == 1);
    CHECK(std::ranges::none_of(biases, [](const auto &b) { return b.first == 390; }));
}

TEST_CASE("draft vocabulary: the same pieces under other ids are translated both ways") {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        std::vector<std::string> pieces = made_up_pieces(500);
        const PieceFile target(pieces);
        for (size_t i = pieces.size() - 1; i > 260; --i)
            std::swap(pieces[i], pieces[260 + random.below(i - 259)]);
        const PieceFile draft(pieces);
        const DraftVocabulary moved = compare(target.tokenizer, draft.tokenizer);
        REQUIRE(moved.kind() == Kind::Mapped);
        for (TokenId id = 0; id < 500; ++id) {
            REQUIRE(moved.to_target(moved.to_draft(id)) == id);
            REQUIRE(target.tokenizer.piece(id) == draft.tokenizer.piece(moved.to_draft(id)));
        }
        auto source = std::make_unique<Told>();
        Told &told = *source;
        const auto ids = translated(std::move(source), moved);
        Sampler sampler({}, 500);
        told.answer = {moved.to_draft(333), moved.to_draft(444)};
        CHECK(ids->draft(Text{299, 301}, 8, 0, sampler).tokens == Text{333, 444});
        CHECK(told.asked == Text{moved.to_draft(299), moved.to_draft(301)});
    }
}

TEST_CASE("draft vocabulary: real tokenizers are distinguished") {
    const std::vector<std::string> names = {"llama-spm", "llama-bpe", "gpt-2", "qwen2", "phi-3", "starcoder"};
    std::vector<gguf::File> files;
    std::vector<text::Tokenizer> tokenizers;
    for (const std::string &name : names) {
        const std::string path = "vocab/" + name + ".gguf";
        if (!has_shared_data(path)) {
            skip("no " + path);
            return;
        }
        files.push_back(gguf::File::open(shared_data() / path));
        tokenizers.push_back(text::Tokenizer::load(files.back()));
    }
    for (size_t a = 0; a < names.size(); ++a)
        for (size_t b = a; b < names.size(); ++b) {
            CAPTURE(names[a]);
            CAPTURE(names[b]);
            const DraftVocabulary vocabulary = compare(tokenizers[a], tokenizers[b]);
            // Phi-3 has Llama 2's vocabulary and some more tokens.
            const bool related = a == 0 && b == 4;
            CHECK(vocabulary.kind() == (a == b ? Kind::Same : related ? Kind::Mapped : Kind::Other));
            CHECK(vocabulary.note().empty() == (a == b));
            if (vocabulary.kind() != Kind::Other) continue;
            const auto eos = tokenizers[a].eos();
            if (eos && tokenizers[b].eos()) CHECK(vocabulary.to_draft(*eos) != text::kNoToken);
        }
}

TEST_CASE("translated draft: text in another tokenizer's tokens is translated to the model's own tokens") {
    const std::string whole = read_file(held_out_text()).substr(0, 6000);
    const std::vector<std::pair<std::string, std::string>> pairs = {
        {"llama-bpe", "gpt-2"}, {"llama-spm", "qwen2"}, {"qwen2", "llama-spm"}, {"gemma3", "tekken"}};
    for (const auto &[here, there] : pairs) {
        if (!has_shared_data("vocab/" + here + ".gguf") || !has_shared_data("vocab/" + there + ".gguf")) {
            skip("no vocabulary " + here + " or " + there);
            continue;
        }
        CAPTURE(here);
        CAPTURE(there);
        const gguf::File file = gguf::File::open(shared_data() / ("vocab/" + here + ".gguf"));
        const gguf::File draft_file = gguf::File::open(shared_data() / ("vocab/" + there + ".gguf"));
        const auto target = text::Tokenizer::load(file), draft = text::Tokenizer::load(draft_file);
        const DraftVocabulary vocabulary = compare(target, draft);
        const Text truth = target.encode(whole, {.continues = true});
        auto source = std::make_unique<Reciter>(whole, draft);
        Reciter &reciter = *source;
        const auto bridge = through_text(std::move(source), vocabulary);
        Sampler sampler({}, target.size());
        size_t at = truth.size() / 2, drafted = 0, accepted = 0, passes = 0;
        while (at + 1 < truth.size()) {
            const Draft out = bridge->draft(std::span(truth).first(at), 12, 0, sampler);
            REQUIRE(out.tokens.size() <= 12);
            REQUIRE(out.probabilities.size() == out.tokens.size());
            size_t right = 0;
            while (right < out.tokens.size() && at + right < truth.size() &&
                   out.tokens[right] == truth[at + right])
                ++right;
            drafted += out.tokens.size();
            accepted += right;
            at += right + 1;
            ++passes;
        }
        CAPTURE(drafted);
        CAPTURE(accepted);
        CHECK(static_cast<double>(accepted) > 0.97 * static_cast<double>(drafted));
        CHECK(static_cast<double>(accepted) > 6.0 * static_cast<double>(passes));
        // The text that the source sees only grows at its end, except for the newest words, so its cache
        // stays valid.
        for (size_t i = 1; i < reciter.asked.size(); ++i) {
            const Text &before = reciter.asked[i - 1], &now = reciter.asked[i];
            const auto end =
                before.begin() + static_cast<std::ptrdiff_t>(std::min(before.size(), now.size()));
            const auto common = std::mismatch(before.begin(), end, now.begin()).first - before.begin();
            REQUIRE(common + 40 > static_cast<std::ptrdiff_t>(before.size()));
        }
    }
}

TEST_CASE("translated draft: control tokens, end tokens, and empty drafts") {
    std::vector<std::string> pieces = made_up_pieces(500);
    const PieceFile target(pieces);
    pieces.resize(330);  // fewer merges
    const PieceFile draft(pieces);
    const DraftVocabulary vocabulary = compare(target.tokenizer, draft.tokenizer);
    REQUIRE(vocabulary.kind() == Kind::Other);
    auto source = std::make_unique<Told>();
    Told &told = *source;
    const auto bridge = translated(std::move(source), vocabulary);
    CHECK(bridge->name() == "told");
    Sampler sampler({}, 500);
    const auto ids_of = [](const text::Tokenizer &tokenizer, const std::string &text) {
        return tokenizer.encode(text, {.add_special = false, .continues = true});
    };
    Text text = ids_of(target.tokenizer, " the tree");
    text.insert(text.begin(), 1);  // <s>

    CHECK(bridge->draft(text, 8, 0, sampler).tokens.empty());
    Text expected = ids_of(draft.tokenizer, " the tree");
    expected.insert(expected.begin(), 1);
    CHECK(told.asked == expected);
    CHECK(bridge->draft(text, 0, 0, sampler).tokens.empty());
    CHECK(bridge->draft(Text{}, 4, 0, sampler).tokens.empty());

    // After an end token, no word is left open.
    told.answer = ids_of(draft.tokenizer, " stood");
    told.answer.push_back(2);  // </s>
    told.answer.push_back(300);
    const Draft out = bridge->draft(text, 30, 0, sampler);
    Text all = ids_of(target.tokenizer, " stood");
    all.push_back(2);
    CHECK(out.tokens == all);
    CHECK(out.probabilities.size() == all.size());

    // Bytes that are not UTF-8 text are translated byte by byte.
    told.answer = {3 + 0xf0, 3 + 0x9f, 3 + 0x98, 3 + 0x80, 2};
    CHECK(bridge->draft(text, 30, 0, sampler).tokens == told.answer);
}
