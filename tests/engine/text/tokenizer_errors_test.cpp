// Tokenizer metadata that is missing, contradictory or malicious is rejected with a message that names the key.
#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/text/pre_tokenizer.h"
#include "tests/engine/text/vocabulary_file.h"

using namespace runnel;
using testing::byte_pair_file;
using testing::sentencepiece_file;
using testing::VocabularyFile;

namespace {

const std::string kPrefix = "tokenizer.ggml.";

void check_refused(const VocabularyFile &file, const std::string &name, const std::string &reason) {
    const std::string message = file.error();
    CAPTURE(message);
    CHECK(message.starts_with(kPrefix + name + ": "));
    CHECK(message.find(reason) != message.npos);
    CHECK(message.find('\n') == message.npos);
}

VocabularyFile spm() {
    return sentencepiece_file({"a", "b", "ab"});
}
VocabularyFile bpe() {
    return byte_pair_file({"a b"}, {"<|end|>"});
}

}  // namespace

TEST_CASE("missing tokenizer metadata is refused") {
    CHECK(spm().error().empty());
    CHECK(bpe().error().empty());
    check_refused(spm().without(kPrefix + "model"), "model", "missing");
    check_refused(spm().without(kPrefix + "tokens"), "tokens", "missing");
    check_refused(spm().without(kPrefix + "scores"), "scores", "missing");
    check_refused(bpe().without(kPrefix + "tokens"), "tokens", "missing");
    check_refused(bpe().without(kPrefix + "merges"), "merges", "missing");
    CHECK(bpe().without(kPrefix + "token_type").error().empty());
    CHECK(bpe().without(kPrefix + "pre").load().tokenizer.model_name() == "gpt2/default");
}

TEST_CASE("unsupported tokenizers are named, and so is what is supported") {
    check_refused(spm().string(kPrefix + "model", "bert"), "model", "'bert'");
    check_refused(spm().string(kPrefix + "model", "be\x1B[1m\nrt"), "model", "supported: llama, gpt2");
    check_refused(spm().string(kPrefix + "model", "t5"), "model", "'t5'");
    for (const char *const name : {"default", "gpt-2", "llama-bpe", "llama3", "llama-v3", "qwen2",
                                   "deepseek-llm", "deepseek-coder", "starcoder"}) {
        CAPTURE(name);
        CHECK(bpe().string(kPrefix + "pre", name).error().empty());
    }
}

TEST_CASE("every pre-tokenizer's patterns compile and keep all of the text") {
    const std::string names = text::pre_tokenizer_names();
    const std::string sample = "I'll  say:\n\n 1234567 x\u00E9\u4E2D\uAC00\U0001F600'S \t\xFF\xC3 end   ";
    for (size_t begin = 0, end = 0; begin < names.size(); begin = end + 2) {
        end = std::min(names.find(", ", begin), names.size());
        const std::string name = names.substr(begin, end - begin);
        CAPTURE(name);
        const auto *const kind = text::find_pre_tokenizer(name);
        REQUIRE(kind);
        const auto ends = text::PreTokenizer(*kind).split(sample);
        CHECK(std::is_sorted(ends.begin(), ends.end()));
        CHECK(std::adjacent_find(ends.begin(), ends.end()) == ends.end());
        CHECK(ends.front() > 0);
        CHECK(ends.back() == sample.size());
    }
}

TEST_CASE("tokenizer metadata of the wrong type is refused") {
    for (const char *const name : {"model", "pre"})
        check_refused(bpe().number(kPrefix + name, 1), name, "string");
    for (const char *const name : {"tokens", "merges"}) {
        check_refused(bpe().string(kPrefix + name, "x"), name, "array");
        check_refused(bpe().ints(kPrefix + name, {1, 2}), name, "strings");
    }
    check_refused(spm().strings(kPrefix + "scores", {"x"}), "scores", "numbers");
    check_refused(spm().number(kPrefix + "scores", 7), "scores", "array");
    check_refused(spm().strings(kPrefix + "token_type", {"x"}), "token_type", "integers");
    check_refused(spm().string(kPrefix + "bos_token_id", "1"), "bos_token_id", "integer");
    check_refused(spm().number(kPrefix + "add_bos_token", 1), "add_bos_token", "boolean");
    check_refused(spm().number(kPrefix + "add_space_prefix", 1), "add_space_prefix", "boolean");
}

TEST_CASE("tokenizer arrays with contradictory lengths are refused") {
    check_refused(spm().floats(kPrefix + "scores", {1, 2, 3}), "scores", "3 entries");
    check_refused(spm().ints(kPrefix + "token_type", {1}), "token_type", "1 entries");
    check_refused(bpe().ints(kPrefix + "token_type", std::vector<int32_t>(1000, 1)), "token_type",
                  "1000 entries");
    check_refused(spm().strings(kPrefix + "tokens", {}), "tokens", "empty");
    std::vector<int32_t> types(262, 1);
    types[5] = 7;
    check_refused(spm().ints(kPrefix + "token_type", types), "token_type", "entry 5");
    types[5] = -1;
    check_refused(spm().ints(kPrefix + "token_type", types), "token_type", "entry 5");
    std::vector<float> scores(262, 1.0f);
    scores[9] = std::numeric_limits<float>::quiet_NaN();
    check_refused(spm().floats(kPrefix + "scores", scores), "scores", "not a number");
}

TEST_CASE("special token ids outside the vocabulary are refused") {
    for (const char *const name : {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id",
                                   "unknown_token_id", "fim_pad_token_id"}) {
        CAPTURE(name);
        check_refused(spm().number(kPrefix + name, 262), name, "262");
        check_refused(spm().number(kPrefix + name, 0x80000000), name, "2147483648");
        CHECK(spm().number(kPrefix + name, 261).error().empty());
        CHECK(spm().number(kPrefix + name, UINT32_MAX).error().empty());
    }
}

TEST_CASE("pieces that occur twice are refused, except empty ones") {
    check_refused(sentencepiece_file({"a", "b", "a"}), "tokens", "tokens 259 and 261");
    CHECK(sentencepiece_file({"a", "", ""}).error().empty());
    CHECK(sentencepiece_file({"a", "", ""}).load().tokenizer.decode(260).empty());
    check_refused(sentencepiece_file({std::string(40000, 'x')}), "tokens", "32 KiB");
    CHECK(sentencepiece_file({std::string(32767, 'x')}).error().empty());
}

TEST_CASE("merges that do not fit the vocabulary are refused") {
    check_refused(bpe().strings(kPrefix + "merges", {"a b", "a c"}), "merges", "entry 1");
    check_refused(bpe().strings(kPrefix + "merges", {"zz b"}), "merges", "entry 0");
    check_refused(bpe().strings(kPrefix + "merges", {"ab"}), "merges", "two pieces");
    check_refused(bpe().strings(kPrefix + "merges", {""}), "merges", "two pieces");
    check_refused(bpe().strings(kPrefix + "merges", {" "}), "merges", "two pieces");
    check_refused(bpe().strings(kPrefix + "merges", {"a "}), "merges", "two pieces");
    CHECK(bpe().strings(kPrefix + "merges", {"a b", "a b"}).error().empty());
    CHECK(bpe().strings(kPrefix + "merges", {}).error().empty());
}

TEST_CASE("random damage to a vocabulary is refused or harmless") {
    auto loaded = byte_pair_file({"a b", "b c", "ab c"}, {"<|end|>", "<s>"}, "llama-bpe").load();
    std::mt19937 random(3);
    int accepted = 0;
    for (int round = 0; round < 2000; ++round) {
        testing::GgufBytes bytes = loaded.bytes;
        for (int i = 0; i < 2; ++i)
            bytes.bytes()[24 + random() % (bytes.bytes().size() - 24)] = std::byte(random());
        try {
            const VocabularyFile::Loaded damaged(std::move(bytes));
            const auto ids = damaged.tokenizer.encode("abc <|end|> \xFF abab", {.parse_special = true});
            damaged.tokenizer.decode(ids, true);
            ++accepted;
        } catch (const text::TokenizerError &error) {
            CHECK(std::string(error.what()).starts_with("tokenizer.ggml."));
        } catch (const gguf::FileError &) {
        }
    }
    CHECK(accepted > 0);
}
