// What the families were compared with: the record that scripts/verify-families writes (verified.cpp) and
// `inspect --supported` prints.
#pragma once

#include <span>
#include <string_view>

namespace runnel::model {

// Models of random F32 weights, the same file run by both: how far our distributions are from the peer's.
struct Verification {
    std::string_view family;  // an architecture, or one of its variants: "phi3, LongRoPE long"
    std::string_view peer;
    double mean_kl, largest_kl;  // nats per token
    double same_top;             // share of tokens whose most likely successor is the same
};

std::span<const Verification> verifications();

}  // namespace runnel::model
