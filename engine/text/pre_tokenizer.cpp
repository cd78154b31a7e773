#include "engine/text/pre_tokenizer.h"

#include <new>

#include "engine/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace runnel::text {
namespace {

struct PcreDeleter {
    void operator()(pcre2_code *code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data *data) const { pcre2_match_data_free(data); }
};
using Code = std::unique_ptr<pcre2_code, PcreDeleter>;
using MatchData = std::unique_ptr<pcre2_match_data, PcreDeleter>;

std::string describe(int error) {
    PCRE2_UCHAR buffer[128] = {};
    pcre2_get_error_message(error, buffer, sizeof buffer);
    return reinterpret_cast<const char *>(buffer);
}

// PCRE2 needs valid UTF-8: every byte that is not part of a character is replaced by a control character that
// is in none of the classes of the patterns. Offsets do not change.
std::string replace_invalid(std::string_view text) {
    std::string clean(text);
    for (size_t at = 0; at < text.size();) {
        const Utf8Char c = first_char(text.substr(at));
        if (!c.valid) clean.replace(at, c.bytes, c.bytes, '\x01');
        at += c.bytes;
    }
    return clean;
}

}  // namespace

class PreTokenizer::Pattern {
  public:
    explicit Pattern(std::string_view source) {
        int error = 0;
        PCRE2_SIZE offset = 0;
        code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                  PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
        if (!code_ && error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
        if (!code_) throw TokenizerError("pre-tokenizer pattern: " + describe(error));
        // If the system forbids JIT (no executable memory), PCRE2 interprets the pattern.
        has_jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
    }

    // Appends to `ends` the ends of the pieces of text[begin, end).
    void split(std::string_view text, uint32_t begin, uint32_t end, pcre2_match_data *data,
               std::vector<uint32_t> &ends) const {
        const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
        const PCRE2_SIZE size = end - begin;
        PCRE2_SIZE done = 0;
        while (done < size && match(subject, size, done, data)) {
            const PCRE2_SIZE *const found = pcre2_get_ovector_pointer(data);
            if (found[1] == found[0]) break;  // no pattern here has empty matches
            if (found[0] > done) ends.push_back(static_cast<uint32_t>(begin + found[0]));
            ends.push_back(static_cast<uint32_t>(begin + found[1]));
            done = found[1];
        }
        if (done < size) ends.push_back(end);
    }

  private:
    bool match(PCRE2_SPTR subject, PCRE2_SIZE size, PCRE2_SIZE from, pcre2_match_data *data) const {
        const auto run = has_jit_ ? &pcre2_jit_match : &pcre2_match;
        int result = run(code_.get(), subject, size, from, PCRE2_NO_UTF_CHECK, data, nullptr);
        // The interpreter is slower, but uses the heap.
        if (result == PCRE2_ERROR_JIT_STACKLIMIT)
            result = pcre2_match(code_.get(), subject, size, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                                 nullptr);
        if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
        if (result < 0 && result != PCRE2_ERROR_NOMATCH)
            throw TokenizerError("the text could not be split into words: " + describe(result));
        return result >= 0;
    }

    Code code_;
    bool has_jit_ = false;
};

PreTokenizer::PreTokenizer(const PreTokenizerKind &kind, Conventions conventions) {
    const bool llama = conventions == Conventions::Llama && !kind.llama_patterns.empty();
    for (const std::string_view source : llama ? kind.llama_patterns : kind.patterns)
        patterns_.emplace_back(source);
}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer &&) noexcept = default;
PreTokenizer &PreTokenizer::operator=(PreTokenizer &&) noexcept = default;

std::vector<uint32_t> PreTokenizer::split(std::string_view text) const {
    std::vector<uint32_t> ends, pieces;
    if (text.empty()) return ends;
    const std::string clean = is_valid_utf8(text) ? std::string() : replace_invalid(text);
    if (!clean.empty()) text = clean;
    const MatchData data(pcre2_match_data_create(1, nullptr));
    if (!data) throw std::bad_alloc();
    ends.push_back(static_cast<uint32_t>(text.size()));
    for (const Pattern &pattern : patterns_) {
        pieces.swap(ends);
        ends.clear();
        uint32_t begin = 0;
        for (const uint32_t end : pieces) {
            pattern.split(text, begin, end, data.get(), ends);
            begin = end;
        }
    }
    return ends;
}

}  // namespace runnel::text
