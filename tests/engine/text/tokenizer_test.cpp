// The encoding rules, on small vocabularies made here: special tokens, blanks, bytes, begin and end tokens.
#include "engine/text/tokenizer.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/engine/text/vocabulary_file.h"

using namespace runnel;
using testing::byte_pair_file;
using testing::kFirstPiece;
using testing::sentencepiece_file;
using testing::VocabularyFile;
using text::EncodeOptions;
using text::TokenId;
using text::Tokenizer;
using Ids = std::vector<TokenId>;

namespace {

// The pieces of ids, for readable comparisons.
std::vector<std::string> pieces(const Tokenizer &tokenizer, const Ids &ids) {
    std::vector<std::string> result;
    for (const TokenId id : ids) result.emplace_back(tokenizer.piece(id));
    return result;
}
std::vector<std::string> encoded(const Tokenizer &tokenizer, std::string_view text, EncodeOptions options) {
    return pieces(tokenizer, tokenizer.encode(text, options));
}
using Pieces = std::vector<std::string>;
constexpr EncodeOptions kPlain{.add_special = false};
constexpr EncodeOptions kParse{.add_special = false, .parse_special = true};

const std::vector<std::string> kHello = {"▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"};

}  // namespace

TEST_CASE("SentencePiece merges the best piece first, leftmost first") {
    const auto loaded = sentencepiece_file({"ab", "bc", "abc", "aa", "aaa", "a", "b", "c", "▁"})
                            .boolean("tokenizer.ggml.add_space_prefix", false)
                            .load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(encoded(tokenizer, "abc", kPlain) == Pieces{"abc"});
    CHECK(encoded(tokenizer, "abbc", kPlain) == Pieces{"ab", "bc"});
    CHECK(encoded(tokenizer, "aaaa", kPlain) == Pieces{"aa", "aa"});
    CHECK(encoded(tokenizer, "aaaaa", kPlain) == Pieces{"aa", "aaa"});
    CHECK(encoded(tokenizer, "a b", kPlain) == Pieces{"a", "▁", "b"});
}

TEST_CASE("SentencePiece puts a blank in front and spells the rest in bytes") {
    const auto loaded = sentencepiece_file(kHello).load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(encoded(tokenizer, "hello", {}) == Pieces{"<s>", "▁hello"});
    CHECK(encoded(tokenizer, "hello hello", kPlain) == Pieces{"▁hello", "▁hello"});
    CHECK(encoded(tokenizer, "hello", {.add_special = false, .continues = true}) == Pieces{"hello"});
    CHECK(encoded(tokenizer, "", {}) == Pieces{"<s>"});
    CHECK(encoded(tokenizer, "", kPlain).empty());
    CHECK(encoded(tokenizer, "hé\xFF", kPlain) == Pieces{"▁", "h", "<0xC3>", "<0xA9>", "<0xFF>"});
    CHECK(tokenizer.decode(tokenizer.encode("hello h\xFF é")) == "hello h\xFF é");
    CHECK(tokenizer.decode(tokenizer.encode(" hello ")) == " hello ");
    CHECK(tokenizer.decode(*tokenizer.find("▁hello")) == " hello");
    CHECK(tokenizer.model_name() == "llama/default");
}

TEST_CASE("without byte tokens a run of unknown characters is one unknown token") {
    VocabularyFile file;
    file.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", {"<unk>", "a", "▁"});
    file.floats("tokenizer.ggml.scores", {0, -1, -2}).ints("tokenizer.ggml.token_type", {2, 1, 1});
    file.boolean("tokenizer.ggml.add_bos_token", false);
    const auto loaded = file.load();
    CHECK(loaded.tokenizer.encode("axyza") == Ids{2, 1, 0, 1});
    CHECK(loaded.tokenizer.encode("xy xy") == Ids{2, 0, 2, 0});
}

TEST_CASE("pieces that are not for text are never made from text") {
    auto file = sentencepiece_file({"<", "s", ">", "<s", "</", "/", "</s", "U", "UU", "▁"});
    std::vector<int32_t> types(kFirstPiece + 10, 1);
    for (int i = 0; i < kFirstPiece; ++i) types[static_cast<size_t>(i)] = i == 0 ? 2 : i < 3 ? 3 : 6;
    types[kFirstPiece + 8] = 5;  // "UU" is unused
    file.ints("tokenizer.ggml.token_type", types).boolean("tokenizer.ggml.add_space_prefix", false);
    const auto loaded = file.load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(encoded(tokenizer, "<s></s>UU", kPlain) == Pieces{"<s", ">", "</s", ">", "U", "U"});
    CHECK(encoded(tokenizer, "<s></s>", kParse) == Pieces{"<s>", "</s>"});
    CHECK_FALSE(tokenizer.is_sampleable(kFirstPiece + 8));
    CHECK(tokenizer.is_sampleable(kFirstPiece + 7));
    CHECK_FALSE(tokenizer.is_sampleable(tokenizer.size()));
    CHECK_FALSE(tokenizer.is_sampleable(-1));
}

TEST_CASE("byte-level BPE applies merges by rank inside the words of the pre-tokenizer") {
    const auto loaded = byte_pair_file({"b c", "a b", "a bc", "\u0120 abc"}, {"<|endoftext|>"}).load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(encoded(tokenizer, "abc abc", {}) == Pieces{"abc", "\u0120abc"});
    CHECK(encoded(tokenizer, "abab", kPlain) == Pieces{"ab", "ab"});
    CHECK(encoded(tokenizer, "ab1ab", kPlain) == Pieces{"ab", "1", "ab"});
    CHECK(encoded(tokenizer, "ab<|endoftext|>", kParse) == Pieces{"ab", "<|endoftext|>"});
    CHECK(encoded(tokenizer, "|endoftext|", kPlain).size() == 11);
    CHECK(tokenizer.decode(tokenizer.encode("abc abc1 ab")) == "abc abc1 ab");
    CHECK(tokenizer.decode(*tokenizer.find("\u0120abc")) == " abc");
    CHECK_FALSE(tokenizer.adds_bos());
    CHECK(tokenizer.model_name() == "gpt2/gpt-2");
}

TEST_CASE("llama-bpe keeps words in the vocabulary whole and adds BOS") {
    const std::vector<std::string> merges = {"b c", "a b"};
    auto file = byte_pair_file(merges, {"<|begin_of_text|>"}, "llama-bpe");
    std::vector<std::string> tokens;
    for (char c = '!'; c <= '~'; ++c) tokens.emplace_back(1, c);
    tokens.insert(tokens.end(), {"\u0120", "bc", "ab", "abc", "<|begin_of_text|>"});
    std::vector<int32_t> types(tokens.size(), 1);
    types.back() = 3;
    file.strings("tokenizer.ggml.tokens", tokens).ints("tokenizer.ggml.token_type", types);
    file.number("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(tokens.size() - 1));
    const auto loaded = file.load();
    CHECK(encoded(loaded.tokenizer, "abc", {}) == Pieces{"<|begin_of_text|>", "abc"});
    CHECK(encoded(loaded.tokenizer, "abcd", kPlain) == Pieces{"a", "bc", "d"});
    file.string("tokenizer.ggml.pre", "llama3").boolean("tokenizer.ggml.add_bos_token", false);
    CHECK(encoded(file.load().tokenizer, "abc", {}) == Pieces{"abc"});
    file.string("tokenizer.ggml.pre", "qwen2").without("tokenizer.ggml.add_bos_token");
    CHECK(encoded(file.load().tokenizer, "abc", {}) == Pieces{"a", "bc"});
}

TEST_CASE("BOS and EOS are added once") {
    auto file = sentencepiece_file(kHello).boolean("tokenizer.ggml.add_eos_token", true);
    const auto loaded = file.load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(encoded(tokenizer, "hello", {}) == Pieces{"<s>", "▁hello", "</s>"});
    CHECK(encoded(tokenizer, "<s>hello</s>", {.parse_special = true}) == Pieces{"<s>", "▁hello", "</s>"});
    CHECK(encoded(tokenizer, "hello", kPlain) == Pieces{"▁hello"});
    CHECK(tokenizer.decode(tokenizer.encode("hello")) == "hello");
    CHECK(tokenizer.decode(tokenizer.encode("hello"), true) == "<s>hello</s>");
    CHECK(tokenizer.bos() == 1);
    CHECK(tokenizer.eos() == 2);
    file.number("tokenizer.ggml.bos_token_id", UINT32_MAX);  // -1: none
    CHECK_FALSE(file.load().tokenizer.bos().has_value());
    CHECK_FALSE(file.load().tokenizer.adds_bos());
}

TEST_CASE("the leftmost, then longest special token is found; user-defined ones in every text") {
    auto file = sentencepiece_file({"<a>", "<a>b", "\n\n", "\n\n\n", "x", "<a", "▁", ">b"});
    std::vector<int32_t> types(kFirstPiece + 8, 1);
    for (int i = 0; i < kFirstPiece; ++i) types[static_cast<size_t>(i)] = i == 0 ? 2 : i < 3 ? 3 : 6;
    types[kFirstPiece] = types[kFirstPiece + 1] = 3;
    types[kFirstPiece + 2] = types[kFirstPiece + 3] = 4;
    file.ints("tokenizer.ggml.token_type", types).boolean("tokenizer.ggml.add_space_prefix", false);
    const auto loaded = file.load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    CHECK(encoded(tokenizer, "x<a>bx", kParse) == Pieces{"x", "<a>b", "x"});
    CHECK(encoded(tokenizer, "<a><a>b", kParse) == Pieces{"<a>", "<a>b"});
    CHECK(encoded(tokenizer, "\n\n\n\n\nx", kPlain) == Pieces{"\n\n\n", "\n\n", "x"});
    CHECK(encoded(tokenizer, "<a>b", kPlain) == Pieces{"<a", ">b"});
    CHECK(tokenizer.decode(tokenizer.encode("\n\n\nx", kPlain)) == "\n\n\nx");
    CHECK(tokenizer.is_control(kFirstPiece));
    CHECK_FALSE(tokenizer.is_control(kFirstPiece + 2));
}

TEST_CASE("Phi-3's added tokens include the white space after them") {
    auto file = sentencepiece_file(kHello).string("general.name", "Phi-3 mini");
    const auto loaded = file.load();
    CHECK(encoded(loaded.tokenizer, "</s> \n hello<s> hello", kParse) ==
          Pieces{"</s>", "▁hello", "<s>", "▁", "▁hello"});
}

TEST_CASE("segments form one text, but only special ones may contain control tokens") {
    const auto loaded = byte_pair_file({"a b", "\u0120 ab"}, {"<|im_end|>"}).load();
    const Tokenizer &tokenizer = loaded.tokenizer;
    const auto encode = [&](const std::vector<text::Segment> &segments) {
        return pieces(tokenizer, tokenizer.encode(segments, kPlain));
    };
    CHECK(encode({{"a", true}, {"b a", false}, {"b<|im_end|>", true}}) ==
          Pieces{"ab", "\u0120ab", "<|im_end|>"});
    CHECK(encode({{"<|im_", true}, {"end|>", true}}) == Pieces{"<|im_end|>"});
    CHECK(encode({{"<|im_end|>", false}}).size() == 10);
    CHECK(encode({{"<|im_", true}, {"end|>", false}}).size() == 10);
    CHECK(encode({{"<|im_", false}, {"end|>", true}}).size() == 10);
    CHECK(encode({}).empty());
}

TEST_CASE("tokens that end generation are recognized by their text") {
    const auto ends = [](const std::vector<std::string> &controls) {
        const auto loaded = byte_pair_file({"a b"}, controls).load();
        Pieces found;
        for (const std::string &control : controls)
            if (loaded.tokenizer.is_end_of_generation(*loaded.tokenizer.find(control)))
                found.push_back(control);
        return found;
    };
    CHECK(ends({"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) == Pieces{"<|im_end|>", "<|endoftext|>"});
    CHECK(ends({"<|eot_id|>", "<|eom_id|>", "<|start_header_id|>"}) == Pieces{"<|eot_id|>", "<|eom_id|>"});
    CHECK(ends({"<|end|>", "<|user|>"}) == Pieces{"<|end|>"});
    CHECK(ends({"<|end|>", "<|return|>", "<|call|>"}) == Pieces{"<|return|>", "<|call|>"});
    CHECK(ends({"<|eot|>", "<|eom|>", "<|header_start|>"}) == Pieces{"<|eot|>", "<|eom|>"});
    CHECK(ends({"<|end_of_turn|>", "<start_of_turn>"}) == Pieces{"<|end_of_turn|>"});
    CHECK(ends({"[gMASK]", "<|user|>", "<|assistant|>", "<|observation|>"}) ==
          Pieces{"<|user|>", "<|observation|>"});
    CHECK(ends({"<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>"}) == Pieces{"<|fim_pad|>", "<|repo_name|>"});

    auto file = byte_pair_file({"a b"}, {"<x>", "<y>"});
    const auto x = *file.load().tokenizer.find("<x>");
    file.number("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(x));
    file.number("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(x + 1));
    const auto loaded = file.load();
    CHECK(loaded.tokenizer.is_end_of_generation(x));
    CHECK(loaded.tokenizer.is_end_of_generation(x + 1));
    CHECK_FALSE(loaded.tokenizer.is_end_of_generation(x - 1));
    CHECK(loaded.tokenizer.eos() == x);
    CHECK(loaded.tokenizer.eot() == x + 1);
    CHECK_FALSE(loaded.tokenizer.is_end_of_generation(-1));
}

TEST_CASE("a turn's end is a control token even if the file calls it user-defined") {
    auto file = byte_pair_file({"a b"}, {"<|im_end|>"});
    std::vector<int32_t> types(96 + 1, 1);
    types.back() = 4;
    const auto loaded = file.ints("tokenizer.ggml.token_type", types).load();
    CHECK(loaded.tokenizer.is_control(*loaded.tokenizer.find("<|im_end|>")));
    CHECK(loaded.tokenizer.encode("<|im_end|>").size() == 10);
}

TEST_CASE("bytes without a token never end a text") {
    auto file = byte_pair_file({"a b"}, {"<|endoftext|>", "<?>"});
    CHECK(file.load().tokenizer.encode("a\xFFz").size() == 2);  // this vocabulary cannot spell U+FFFD
    const auto end = static_cast<uint32_t>(*file.load().tokenizer.find("<|endoftext|>"));
    file.number("tokenizer.ggml.unknown_token_id", end);
    CHECK(encoded(file.load().tokenizer, "a\xFFz", kPlain) == Pieces{"a", "z"});
    file.number("tokenizer.ggml.unknown_token_id", end + 1);
    CHECK(encoded(file.load().tokenizer, "a\xFFz", kPlain) == Pieces{"a", "<?>", "z"});
}

TEST_CASE("ASCII without a token is dropped, other bytes become U+FFFD") {
    VocabularyFile file;
    file.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "falcon");
    file.strings("tokenizer.ggml.tokens", {"a", "z", "\u00EF", "\u00BF", "\u00BD"});
    file.strings("tokenizer.ggml.merges", {});
    const auto loaded = file.load();
    for (const char control : {'\x01', '\x08', '\x0b', '\x1f'}) {
        CAPTURE(static_cast<int>(control));
        CHECK(encoded(loaded.tokenizer, std::string("a") + control + "z", kPlain) == Pieces{"a", "z"});
    }
    CHECK(encoded(loaded.tokenizer, "a\xFFz", kPlain) == Pieces{"a", "\u00EF", "\u00BF", "\u00BD", "z"});
}

TEST_CASE("GLM-4 keeps words in the vocabulary whole, ChatGLM merges") {
    const std::vector<std::string> merges = {"a b", "b c", "a bc"};
    for (const char *pre : {"glm4", "glm5"})
        CHECK(encoded(byte_pair_file(merges, {}, pre).load().tokenizer, "abc", kPlain) == Pieces{"abc"});
    CHECK(encoded(byte_pair_file(merges, {}, "chatglm-bpe").load().tokenizer, "abc", kPlain) ==
          Pieces{"ab", "c"});
}

TEST_CASE("a GPT-NeoX file without a pre-tokenizer is split by GPT-NeoX's rules") {
    auto file = byte_pair_file({"0 0", "00 00"}, {}, "");
    file.without("tokenizer.ggml.pre");
    CHECK(encoded(file.load().tokenizer, "0000", kPlain) ==
          Pieces{"00", "0", "0"});  // "default" splits after three digits
    file.string("general.architecture", "gptneox");
    CHECK(encoded(file.load().tokenizer, "0000", kPlain) == Pieces{"0000"});
}

TEST_CASE("ids outside the vocabulary have no text") {
    const auto loaded = sentencepiece_file(kHello).load();
    for (const TokenId id : {-1, loaded.tokenizer.size(), INT32_MAX, INT32_MIN}) {
        CHECK(loaded.tokenizer.piece(id).empty());
        CHECK(loaded.tokenizer.decode(id).empty());
        CHECK_FALSE(loaded.tokenizer.is_control(id));
    }
    CHECK_FALSE(loaded.tokenizer.find("no such piece").has_value());
    CHECK_FALSE(loaded.tokenizer.find("").has_value());
}
