// The tensors of a draft head for tests: random values, which a test can change.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/writer.h"
#include "tests/support/random.h"

namespace runnel::testing {

// A key of the target's architecture. Throws std::invalid_argument if it is missing and `absent` is negative.
int64_t number_of(const gguf::File &target, const std::string &key, int64_t absent = -1);
// The rows of its token_embd.weight. Throws std::invalid_argument if there is none.
int64_t vocab_of(const gguf::File &target);

class HeadTensors {
  public:
    struct Values {
        std::vector<int64_t> shape;  // fastest first
        std::vector<float> all;
    };

    explicit HeadTensors(uint64_t seed) : random_(seed) {}

    Values &at(const std::string &name) { return tensors.at(name); }
    void fill(const std::string &name, float value);
    void add(const std::string &name, std::vector<int64_t> shape, float mean, float sigma);
    // name + ".weight", which gives outputs of the inputs' size times `gain`.
    void add_matrix(const std::string &name, int64_t cols, int64_t rows, float gain);

    // Norms and divisors of frequencies are F32, matrices of `type`, or F16 if their rows are not whole blocks of it.
    void describe(gguf::Writer &writer, const std::string &type) const;
    void write(gguf::Writer &writer, const std::string &type) const;

    std::map<std::string, Values> tensors;

  protected:
    Random random_;
};

}  // namespace runnel::testing
