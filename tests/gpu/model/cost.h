// Time of one decoded token on a device: bytes, instructions, waves and boundaries of every launch, in three cases.
// The figures of a case are all optimistic, middle or pessimistic; the interval is between the first and the last.
#pragma once

#include "tests/gpu/model/code.h"
#include "tests/gpu/model/devices.h"
#include "tests/gpu/model/shapes.h"

namespace runnel::tests::model {

// Seconds.
struct LaunchCost {
    double bytes = 0;  // its bytes at the device's rate, where its blocks have enough of them under way
    double instructions = 0;  // on the multiprocessor with the most tiles
    double time = 0;          // of both together, without the boundary
};

// tokens: 1, or up to 8 (a batch).
LaunchCost cost_of(const MatrixLaunch &launch, int tokens, const Device &device, const CodeTable &code,
                   Case c, Version version = Version::Now);

struct TokenCost {
    double bytes = 0, instructions = 0, matrices = 0;  // of all matrices; `matrices` is their time
    double boundaries = 0, norms = 0, attention = 0, routing = 0, host = 0;
    double ahead = 0;  // of `matrices`: what was fetched into L2 during the other parts
    double all() const { return matrices + boundaries + norms + attention + routing + host - ahead; }
};

// Of a token at a short context, or of a token of each of `tokens` sequences.
TokenCost cost_of(const Shape &shape, FileType type, int tokens, const Device &device, const CodeTable &code,
                  Case c, Version version = Version::Now);

// Tokens per second of one sequence.
Range tokens_per_second(const Shape &shape, FileType type, const Device &device, const CodeTable &code,
                        Version version = Version::Now);

}  // namespace runnel::tests::model
