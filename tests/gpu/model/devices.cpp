// Sources: gpu-benches (te42kyfo, 2023-24: reads of 80 to 160 MB, latencies, edges of graphs), calm (zeux, README:
// bandwidth shares on a 4090), gpt-fast (README, A100), msaroufim/megakernels-vs-cuda-graphs (H100 and H200), FlashMLA
// (README, H800), Chips and Cheese (B200, GB10), AlpinDale (5090), NVIDIA's data sheets and programming guide
// (instructions per clock by compute capability). "Estimate" marks what none of them states.
#include "tests/gpu/model/devices.h"

#include <stdexcept>

namespace runnel::tests::model {

namespace {

// In the order of Pipe: float, half, integer, multiply, tensor, slow, global, shared, other. The rates are those of
// the programming guide; mma from the data sheets' rate with float sums. Loads of 16 bytes per lane: 128 bytes per
// clock from L1. Shared: 32 lanes of 4 bytes per clock.
constexpr PipeClocks kAmpere = {2, 1, 2, 2, 8, 8, 16, 4, 1};
constexpr PipeClocks kAda = {1, 2, 2, 2, 32, 8, 16, 4, 1};
constexpr PipeClocks kAdaServer = {1, 2, 2, 2, 16, 8, 16, 4, 1};
constexpr PipeClocks kHopper = {1, 1, 2, 2, 6.3, 8, 16, 4, 1};
constexpr PipeClocks kBlackwell = {1, 1, 2, 2, 8, 8, 16, 4, 1};  // sm_100: as sm_90; mma an estimate
// sm_120 adds integers at full rate; whether its logic does is not stated, so half rate is assumed.
constexpr PipeClocks kBlackwellConsumer = {1, 2, 2, 1, 32, 8, 16, 4, 1};

// Microseconds between dependent launches: with programmatic dependent launches as the kernels use them (no weights
// are loaded ahead, because a block fills the registers), and without (sm_80, sm_89).
constexpr Range kDependent = {2.0, 2.25, 2.5}, kPlain = {3.0, 3.25, 3.5};

const Device kDevices[] = {
    {"A100 80 GB",
     80,
     108,
     {1.41, 1.41, 1.41},
     {1870, 1780, 1700},
     16e3,
     kPlain,
     80,
     164,
     40,
     kAmpere,
     "read: gpu-benches 1730 to 1870, 1700 at 330 W (gpt-fast)"},
    {"RTX 4090",
     89,
     128,
     {2.7, 2.6, 2.5},
     {955, 950, 945},
     4e3,
     kPlain,
     24,
     100,
     72,
     kAda,
     "read: calm, 94 to 95% of 1008; bytes in flight: L40 (gpu-benches)"},
    {"L40S",
     89,
     142,
     {2.52, 2.45, 2.4},
     {846, 820, 796},
     4e3,
     kPlain,
     48,
     100,
     96,
     kAdaServer,
     "read: gpu-benches (L40)"},
    {"H100 SXM",
     90,
     132,
     {1.98, 1.85, 1.75},
     {3100, 3000, 2800},
     18e3,
     kDependent,
     80,
     228,
     50,
     kHopper,
     "read: FlashMLA 3000 on an H800, gpu-benches"},
    {"H200",
     90,
     132,
     {1.98, 1.83, 1.8},
     {4400, 4100, 3800},
     22e3,
     kDependent,
     141,
     228,
     50,
     kHopper,
     "read: 4400 and GHz measured (results/); gpu-benches 3890; 21 to 23 KB in flight per multiprocessor for "
     "it"},
    {"B200",
     100,
     148,
     {1.97, 1.85, 1.75},
     {7100, 6600, 6000},
     35e3,
     {2.0, 2.5, 3.5},
     180,
     228,
     126,
     kBlackwell,
     "read: above 6000 as a copy (Chips and Cheese), 6000 to 7100 an estimate; bytes in flight an estimate"},
    {"RTX 5090",
     120,
     170,
     {2.7, 2.55, 2.4},
     {1700, 1674, 1620},
     7e3,
     kDependent,
     32,
     100,
     96,
     kBlackwellConsumer,
     "read: AlpinDale 1674; bytes in flight an estimate"},
    {"GB10",
     120,
     48,
     {2.5, 2.45, 2.4},
     {250, 232, 215},
     4e3,
     kDependent,
     120,
     100,
     24,
     kBlackwellConsumer,
     "read: 215 to 250 of 273, an estimate"},
};

}  // namespace

std::span<const Device> devices() {
    return kDevices;
}

const Device &device(const std::string &name) {
    for (const Device &d : kDevices)
        if (d.name == name) return d;
    throw std::out_of_range("no device " + name + " in the cost model");
}

}  // namespace runnel::tests::model
