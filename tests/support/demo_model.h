// The small trained models that are part of the repository, and text that none was trained on
// (tests/models/README.md).
#pragma once

#include <filesystem>

namespace runnel::testing {

inline std::filesystem::path demo_model() {
    return "tests/models/demo-q8_0.gguf";
}

inline std::filesystem::path demo_draft() {
    return "tests/models/demo-draft-q8_0.gguf";
}

// Gated delta nets and attention, with a next-token-prediction block.
inline std::filesystem::path demo_hybrid() {
    return "tests/models/hybrid-q8_0.gguf";
}

inline std::filesystem::path held_out_text() {
    return "tests/data/held-out.txt";
}

}  // namespace runnel::testing
