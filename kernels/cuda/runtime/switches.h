// What of the CUDA backend an environment variable leaves out: to find by halves what a device or a driver
// gets wrong, and to compare speeds (scripts/gpu-check). No text changes.
//
//   RUNNEL_CUDA_OFF=pdl,graphs runnel run ...
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace runnel::kernels::cuda {

struct Switches {
    bool pdl = true;       // launches that start before the one ahead of them has ended
    bool graphs = true;    // the launches of a step recorded once and replayed
    bool prefetch = true;  // of cache pages into L2 (attention over wide heads)
    bool carveout = true;  // one division of L1 and shared memory for all kernels: else the driver's choice
    bool trigger = true;   // the next launch may start as early as it can: else when a block is done
    bool operator==(const Switches &) const = default;
};

inline constexpr const char *kSwitchesVariable = "RUNNEL_CUDA_OFF";

// Of a list of names with commas between them. Throws BackendError for a name that is none.
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
        else if (name == "carveout")
            result.carveout = false;
        else if (name == "trigger")
            result.trigger = false;
        else
            throw BackendError(BackendError::Kind::Failed,
                               std::string(kSwitchesVariable) + ": there is no '" + std::string(name) +
                                   "' (choose of pdl, graphs, prefetch, carveout, trigger)");
    }
    return result;
}

// Of the environment, now.
inline Switches switches() {
    const char *names = std::getenv(kSwitchesVariable);
    return switches_without(names ? names : "");
}

}  // namespace runnel::kernels::cuda
