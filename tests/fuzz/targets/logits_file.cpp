// Saved log-probabilities (--kl-base).
#include <cmath>

#include "engine/decode/error.h"
#include "engine/measure/logits_file.h"
#include "tests/fuzz/targets.h"
#include "tests/support/memory_file.h"

namespace runnel::fuzz {

void logits_file(Input input) {
    constexpr int32_t kVocabulary = 5;
    const testing::MemoryFile file(input);
    try {
        measure::LogitsReader reader(file.path(), kVocabulary);
        const int64_t rows = int64_t{reader.chunks()} * measure::scored_rows(reader.context());
        require(reader.tokens().size() ==
                    static_cast<size_t>(reader.context()) * static_cast<size_t>(reader.chunks()),
                "tokens for every chunk");
        for (int64_t row = 0; row < rows; ++row)
            for (const float p : reader.read()) require(p <= 1e-2f, "a log-probability is not above 0");
    } catch (const decode::DecodeError &error) {
        require(error.kind == decode::DecodeError::Kind::BadInput, "a bad file is bad input");
    }
}

}  // namespace runnel::fuzz
