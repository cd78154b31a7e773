// Which experts a program chooses for the tokens that it computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"

namespace runnel::kernels {

struct TracedMixture {
    int32_t layer, experts, used;
    size_t expert_bytes;          // of one expert's matrices and biases in the file
    std::vector<int32_t> chosen;  // [token][used], ascending for each token
};

struct ExpertTrace {
    std::vector<TracedMixture> mixtures;  // in the order of the steps

    size_t tokens() const;
    int32_t most_experts() const;  // of a mixture
    int32_t most_used() const;
    size_t all_bytes() const;  // of all experts
};

// A backend whose passes append the choices for all their tokens, in the order of the batch, to the trace. Logits have the
// same bits as without. Each mixture begins a part of the program, which must have no parts of its own.
std::unique_ptr<Backend> trace_experts(std::unique_ptr<Backend> backend, std::shared_ptr<ExpertTrace> trace);

}  // namespace runnel::kernels
