// The functions that the fuzzers call: one per kind of untrusted input. Each checks properties of any input.
//
// libFuzzer runs them (tests/fuzz/driver.cpp, `make fuzz`); the test suite replays the files of
// tests/fuzz/corpus/NAME/, seeds and former findings, under the build's own compiler (corpus_test.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace runnel::fuzz {

using Input = std::span<const uint8_t>;

void gguf(Input input);   // model file -> metadata, tensors, tokenizer, chat prompt
void jinja(Input input);  // chat template, NUL, JSON context
void row(Input input);    // a line of a batch, and of its output
void prompt_file(Input input);
void stored_prompt(Input input);  // a file of --prompt-cache auto
void logits_file(Input input);
void config(Input input);        // --config, and the argument list
void transcript(Input input);    // /load
void tokenizer(Input input);     // text and the places where it is cut
void utf8(Input input);          // streams and the terminal filter
void cache(Input input);         // operations on sequences of the paged cache, against a list of tokens
void grammar(Input input);       // GBNF, NUL, text
void schema(Input input);        // JSON schema, NUL, text
void regex(Input input);         // regular expression, NUL, text
void tool_calls(Input input);    // a model's text, in each format of tool calls
void suffix_index(Input input);  // n-gram drafts, against a search by brute force

struct Target {
    std::string_view name;
    void (*run)(Input);
    size_t longest;  // of the inputs that are worth trying, in bytes
};
inline constexpr Target kTargets[] = {
    {"gguf", gguf, 16384},
    {"jinja", jinja, 1024},
    {"row", row, 2048},
    {"prompt_file", prompt_file, 16384},
    {"stored_prompt", stored_prompt, 16384},
    {"logits_file", logits_file, 2048},
    {"config", config, 1024},
    {"transcript", transcript, 2048},
    {"tokenizer", tokenizer, 512},
    {"utf8", utf8, 256},
    {"cache", cache, 512},
    {"suffix_index", suffix_index, 256},
    {"grammar", grammar, 512},
    {"schema", schema, 1024},
    {"regex", regex, 256},
    {"tool_calls", tool_calls, 512},
};

// A property that does not hold. A target must throw nothing else.
class Broken : public std::logic_error {
    using std::logic_error::logic_error;
};
inline void require(bool holds, const char *property) {
    if (!holds) throw Broken(property);
}

inline std::string_view text_of(Input input) {
    return {reinterpret_cast<const char *>(input.data()), input.size()};
}

// Takes values from the front of the input, and zeros when it is used up.
class Bytes {
  public:
    explicit Bytes(Input input) : rest_(input) {}
    bool empty() const { return rest_.empty(); }
    uint8_t byte() {
        if (rest_.empty()) return 0;
        const uint8_t first = rest_.front();
        rest_ = rest_.subspan(1);
        return first;
    }
    size_t below(size_t n) { return byte() % n; }  // n <= 256
    Input rest() const { return rest_; }

  private:
    Input rest_;
};

}  // namespace runnel::fuzz
