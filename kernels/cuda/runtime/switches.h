// Parts of the CUDA backend that an environment variable disables: to bisect errors of a device or driver,
// and to compare speeds (scripts/gpu-check). The generated text does not change.
//
//   RUNNEL_CUDA_OFF=pdl,graphs runnel run ...
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

struct Switches {
    bool pdl = true;       // launches that start before the previous one has ended
    bool graphs = true;    // recorded and replayed launches
    bool prefetch = true;  // into L2: the next launch's weights, and cache pages (attention over wide heads)
    bool staging = true;   // inputs of matrices in shared memory; off: read through L1
    bool carveout = true;  // one division of L1 and shared memory for all kernels; off: the driver chooses
    bool peer = true;      // copies from GPU to GPU; off: through host memory
    bool trigger = true;   // the next launch may start early; off: only when the blocks are done
    bool nccl = true;      // gathers of --split tensor by NCCL; off: through host memory
    bool operator==(const Switches &) const = default;
};

inline constexpr const char *kSwitchesVariable = "RUNNEL_CUDA_OFF";

// Parses a comma-separated list of names. Throws BackendError for an unknown name.
inline Switches switches_without(std::string_view names) {
    Switches result;
    while (!names.empty()) {
        const std::string_view name = names.substr(0, names.find(','));
        names.remove_prefix(name.size() < names.size() ? name.size() + 1 : name.size());
        if (name == "pdl")
            result.pdl = false;
        else if (name == "graphs")
            result.graphs = false;
        else if (name == "prefetch")
            result.prefetch = false;
        else if (name == "staging")
            result.staging = false;
        else if (name == "carveout")
            result.carveout = false;
        else if (name == "peer")
            result.peer = false;
        else if (name == "trigger")
            result.trigger = false;
        else if (name == "nccl")
            result.nccl = false;
        else
            throw BackendError(
                BackendError::Kind::Failed,
                std::string(kSwitchesVariable) + ": there is no '" + std::string(name) +
                    "' (choose from pdl, graphs, prefetch, staging, carveout, peer, trigger, nccl)");
    }
    return result;
}

// Reads the environment variable.
inline Switches switches() {
    const char *names = std::getenv(kSwitchesVariable);
    return switches_without(names ? names : "");
}

}  // namespace runnel::kernels::cuda
