#include "engine/measure/logits_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <system_error>

#include "engine/decode/error.h"
#include "gguf/printable.h"

namespace runnel::measure {
namespace {

using decode::DecodeError;

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "_logits_";
constexpr size_t kHeader = 8 + 3 * sizeof(int32_t);
constexpr size_t kScaleWords = 4;  // two floats before the codes
constexpr int32_t kLargestContext = 1 << 24;
constexpr float kRounding = 1e-3f;  // rounding error of a log-probability of 0, computed from scale and min

size_t row_words(int32_t vocab) {
    return kScaleWords + (static_cast<size_t>(vocab) + 1) / 2 * 2;
}

template <class T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
    return std::as_bytes(values);
}

}  // namespace

void compress_row(std::span<const float> logits, std::vector<uint16_t> &row) {
    row.assign(row_words(static_cast<int32_t>(logits.size())), 0);
    const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
    const float top = *most, bottom = std::max(*least, top - 16);
    double sum = 0;
    for (const float l : logits) sum += std::exp(double{l} - double{top});
    const float scale = (top - bottom) / 65535.0f;
    const float floats[2] = {scale, static_cast<float>(double{bottom} - double{top} - std::log(sum))};
    std::memcpy(row.data(), floats, sizeof floats);
    if (!(scale > 0)) return;
    for (size_t i = 0; i < logits.size(); ++i) {
        const float code = std::nearbyint((std::max(logits[i], bottom) - bottom) / scale);
        row[kScaleWords + i] = static_cast<uint16_t>(std::clamp(code, 0.0f, 65535.0f));
    }
}

void expand_row(std::span<const uint16_t> row, std::span<float> log_probabilities) {
    float floats[2];
    std::memcpy(floats, row.data(), sizeof floats);
    for (size_t i = 0; i < log_probabilities.size(); ++i)
        log_probabilities[i] = floats[0] * static_cast<float>(row[kScaleWords + i]) + floats[1];
}

LogitsWriter::LogitsWriter(const std::filesystem::path &path, int32_t context, int32_t vocab,
                           std::span<const TokenId> tokens, bool overwrite)
    : file_(path, {.overwrite = overwrite}) {
    const int32_t counts[] = {context, vocab,
                              static_cast<int32_t>(tokens.size() / static_cast<size_t>(context))};
    file_.write(bytes_of(std::span(kMagic)));
    file_.write(bytes_of(std::span<const int32_t>(counts)));
    file_.write(bytes_of(tokens));
}

void LogitsWriter::write(std::span<const float> logits) {
    compress_row(logits, row_);
    file_.write(bytes_of(std::span<const uint16_t>(row_)));
}

void LogitsWriter::commit() {
    file_.commit();
}

void LogitsReader::fail(const std::string &problem) const {
    throw DecodeError(DecodeError::Kind::BadInput, gguf::printable(path_.native(), 4096) + ": " + problem);
}

LogitsReader::LogitsReader(const std::filesystem::path &path, int32_t vocab) : path_(path) {
    std::error_code error;
    const uint64_t bytes = std::filesystem::file_size(path, error);
    if (error) fail(error.message());
    file_.open(path, std::ios::binary);
    char magic[8] = {};
    int32_t counts[3] = {};
    if (!file_.read(magic, sizeof magic) || std::string_view(magic, sizeof magic) != kMagic ||
        !file_.read(reinterpret_cast<char *>(counts), sizeof counts))
        fail(
            "not a file of saved logits (written by --save-logits or llama-perplexity --kl-divergence-base)");
    context_ = counts[0], vocab_ = counts[1], chunks_ = counts[2];
    if (vocab_ != vocab)
        fail("made for a vocabulary of " + std::to_string(vocab_) + ", but the model has " +
             std::to_string(vocab));
    check_size(bytes);
    tokens_.resize(static_cast<size_t>(context_) * static_cast<size_t>(chunks_));
    if (!file_.read(reinterpret_cast<char *>(tokens_.data()),
                    static_cast<std::streamsize>(tokens_.size() * sizeof(TokenId))))
        fail("cannot be read");
    for (const TokenId id : tokens_)
        if (id < 0 || id >= vocab_)
            fail("holds a token that is not in the vocabulary: " + std::to_string(id));
    row_.resize(row_words(vocab_));
    log_probabilities_.resize(static_cast<size_t>(vocab_));
}

void LogitsReader::check_size(uint64_t bytes) const {
    if (context_ < 4 || context_ > kLargestContext || chunks_ < 1)
        fail("its header is damaged (context " + std::to_string(context_) + ", " + std::to_string(chunks_) +
             " chunks)");
    // context < 2^24 and vocab < 2^31: the bytes of a chunk stay below 2^57.
    const uint64_t chunk =
        static_cast<uint64_t>(context_) * sizeof(TokenId) +
        static_cast<uint64_t>(scored_rows(context_)) * row_words(vocab_) * sizeof(uint16_t);
    if (bytes < kHeader || (bytes - kHeader) / chunk < static_cast<uint64_t>(chunks_))
        fail("truncated: " + std::to_string(chunks_) + " chunks of " + std::to_string(chunk) +
             " bytes are announced, the file has " + std::to_string(bytes));
}

std::span<const float> LogitsReader::read() {
    if (!file_.read(reinterpret_cast<char *>(row_.data()),
                    static_cast<std::streamsize>(row_.size() * sizeof(uint16_t))))
        fail("cannot be read to its end");
    float floats[2];
    std::memcpy(floats, row_.data(), sizeof floats);
    if (!std::isfinite(floats[0]) || !std::isfinite(floats[1]) || floats[0] < 0)
        fail("damaged: a scale or minimum is invalid");
    expand_row(row_, log_probabilities_);
    const float most = *std::ranges::max_element(log_probabilities_);
    if (!(most <= kRounding)) fail("damaged: it holds a probability above 1");
    return log_probabilities_;
}

}  // namespace runnel::measure
