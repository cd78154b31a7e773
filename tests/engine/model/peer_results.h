// What llama.cpp (for phimoe: transformers) computes for tiny models of random weights: the record that
// scripts/verify-families writes (peer_results.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace runnel::tests {

// The models: make_model with width 64, ff 96, 4 heads, vocabulary 320, context 512, seed 11, F32, and the
// layers and K/V heads below.
struct PeerResult {
    std::string_view family;      // ModelShape::arch
    double log_probabilities[8];  // of tokens 0..7 after all peer_tokens() but the last
};

std::span<const int32_t> peer_tokens();
std::span<const PeerResult> peer_results();

}  // namespace runnel::tests
