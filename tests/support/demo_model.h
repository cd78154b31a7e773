// The small trained model that is part of the repository, its draft model, and text that neither was trained
// on (tests/models/README.md).
#pragma once

#include <filesystem>

namespace runnel::testing {

inline std::filesystem::path demo_model() {
    return "tests/models/demo-q8_0.gguf";
}

inline std::filesystem::path demo_draft() {
    return "tests/models/demo-draft-q8_0.gguf";
}

inline std::filesystem::path held_out_text() {
    return "tests/data/held-out.txt";
}

}  // namespace runnel::testing
