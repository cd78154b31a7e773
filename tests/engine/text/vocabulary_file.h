// Makes small GGUF files with only a tokenizer, valid or invalid, for tests.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/tokenizer.h"
#include "gguf/file.h"
#include "tests/support/gguf_bytes.h"

namespace runnel::testing {

class VocabularyFile {
  public:
    VocabularyFile &string(std::string_view key, std::string_view value) {
        return set(key, [&](GgufBytes &bytes) { bytes.key(key, gguf::ValueType::String).put_string(value); });
    }
    VocabularyFile &number(std::string_view key, uint32_t value) {
        return set(key, [&](GgufBytes &bytes) { bytes.key(key, gguf::ValueType::U32, value); });
    }
    VocabularyFile &boolean(std::string_view key, bool value) {
        return set(key, [&](GgufBytes &bytes) {
            bytes.key(key, gguf::ValueType::Bool, static_cast<uint8_t>(value));
        });
    }
    VocabularyFile &strings(std::string_view key, const std::vector<std::string> &values) {
        return set(key, [&](GgufBytes &bytes) {
            bytes.key(key, gguf::ValueType::Array).array(gguf::ValueType::String, values.size());
            for (const std::string &value : values) bytes.put_string(value);
        });
    }
    VocabularyFile &floats(std::string_view key, const std::vector<float> &values) {
        return set(key, [&](GgufBytes &bytes) {
            bytes.key(key, gguf::ValueType::Array).array(gguf::ValueType::F32, values.size());
            for (const float value : values) bytes.put(value);
        });
    }
    VocabularyFile &ints(std::string_view key, const std::vector<int32_t> &values) {
        return set(key, [&](GgufBytes &bytes) {
            bytes.key(key, gguf::ValueType::Array).array(gguf::ValueType::I32, values.size());
            for (const int32_t value : values) bytes.put(value);
        });
    }
    VocabularyFile &bytes(std::string_view key, std::string_view values) {
        return set(key, [&](GgufBytes &bytes) {
            bytes.key(key, gguf::ValueType::Array).array(gguf::ValueType::U8, values.size());
            bytes.put_raw(values);
        });
    }
    VocabularyFile &without(std::string_view key) {
        std::erase_if(entries_, [&](const auto &entry) { return entry.first == key; });
        return *this;
    }

    // Keeps all three together: the bytes must outlive the file, and the file the tokenizer.
    struct Loaded {
        GgufBytes bytes;
        gguf::File file;
        text::Tokenizer tokenizer;
        explicit Loaded(GgufBytes content)
            : bytes(std::move(content)), file(bytes.open()), tokenizer(text::Tokenizer::load(file)) {}
    };
    Loaded load() const {
        GgufBytes all;
        all.header(0, entries_.size());
        for (const auto &entry : entries_)
            for (const std::byte b : entry.second.span()) all.put(b);
        return Loaded(std::move(all));
    }
    // The error message of loading; empty if it succeeds.
    std::string error() const {
        try {
            load();
        } catch (const text::TokenizerError &error) {
            return error.what();
        }
        return {};
    }

  private:
    VocabularyFile &set(std::string_view key, const std::function<void(GgufBytes &)> &write) {
        without(key);
        GgufBytes bytes;
        write(bytes);
        entries_.emplace_back(key, std::move(bytes));
        return *this;
    }
    std::vector<std::pair<std::string, GgufBytes>> entries_;
};

// A SentencePiece vocabulary: <unk> <s> </s>, the 256 byte tokens (from id 3), then `pieces`, best first.
inline VocabularyFile sentencepiece_file(const std::vector<std::string> &pieces) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> types = {2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) {
        const char *const digits = "0123456789ABCDEF";
        tokens.push_back(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
        types.push_back(6);
    }
    std::vector<float> scores(tokens.size(), 0.0f);
    for (const std::string &piece : pieces) {
        scores.push_back(-static_cast<float>(tokens.size()));
        tokens.push_back(piece);
        types.push_back(1);
    }
    VocabularyFile file;
    file.string("tokenizer.ggml.model", "llama").strings("tokenizer.ggml.tokens", tokens);
    file.floats("tokenizer.ggml.scores", scores).ints("tokenizer.ggml.token_type", types);
    return file;
}
inline constexpr text::TokenId kFirstPiece = 3 + 256;  // of sentencepiece_file

// A byte-level BPE vocabulary: printable ASCII and "\u0120" (the blank), the results of `merges`, then `controls`.
inline VocabularyFile byte_pair_file(const std::vector<std::string> &merges,
                                     const std::vector<std::string> &controls,
                                     std::string_view pre = "gpt-2") {
    std::vector<std::string> tokens;
    for (char c = '!'; c <= '~'; ++c) tokens.emplace_back(1, c);
    tokens.emplace_back("\u0120");
    for (const std::string &merge : merges) {
        const size_t blank = merge.find(' ', 1);
        tokens.push_back(merge.substr(0, blank) + merge.substr(blank + 1));
    }
    std::vector<int32_t> types(tokens.size(), 1);
    for (const std::string &control : controls) {
        tokens.push_back(control);
        types.push_back(3);
    }
    VocabularyFile file;
    file.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", pre);
    file.strings("tokenizer.ggml.tokens", tokens).strings("tokenizer.ggml.merges", merges);
    file.ints("tokenizer.ggml.token_type", types);
    return file;
}

}  // namespace runnel::testing
