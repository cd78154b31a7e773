// The CPU's plan of a Program: its steps regrouped into phases with one barrier between them.
//
// All threads run the same list of phases. A phase is split by tokens (cheap row-wise work) or by rows of a
// matrix (everything that reads weights); within a phase, threads do not depend on each other. Steps that
// only prepare the input of a matrix (norm, gate) are merged with its quantization.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/cpu/experts.h"
#include "kernels/cpu/linear.h"
#include "kernels/program.h"

namespace runnel::kernels::cpu {

// A set of ActFormat, by bit.
using FormatSet = uint32_t;
constexpr FormatSet format_bit(ActFormat format) {
    return 1u << static_cast<uint32_t>(format);
}

struct EmbedPhase {
    Embed step;
};

struct HashedEmbedPhase {
    HashedEmbed step;
};

// Runs the step that computes the next multiply's input, if there is one, and packs `slot` in every required format.
struct PreparePhase {
    std::variant<std::monostate, Norm, Activation> step;
    Slot slot;
    FormatSet formats;  // none: only runs the step
};

struct MultiplyPhase {
    Linear step;
};

// Head norms and RoPE; appends K and V to the cache. Also of an indexer (AttentionRunner::keys_of()).
struct AppendPhase {
    Attention step;
};

struct AttendPhase {
    Attention step;
};

// The scores of an indexer, and its choice.
struct IndexPhase {
    Indexer step;
};

struct HeadsPhase {
    HeadLinear step;
};

struct CopyPhase {
    Copy step;
};

struct RotatePhase {
    Rotate step;
};

struct MixPhase {
    Mix step;
};

struct StreamsPhase {
    StreamWeights step;
};

struct LerpPhase {
    Lerp step;
};

struct RopePhase {
    Rope step;
};

struct JoinPhase {
    JoinAttention step;
};

// One of the recurrent steps.
struct ScanPhase {
    std::variant<ShortConv, SoftPool, ScanGate, LinearScan, SelectiveScan> step;
};

// One of the five phases of a mixture of experts.
struct ExpertsPhase {
    Experts step;
    ExpertRunner::Phase phase;
};

// From here on only tokens whose logits are requested are computed: moves their rows to the front of these slots.
struct SelectPhase {
    std::vector<Slot> slots;
};

struct LogitsPhase {
    Logits step;
};

using Phase =
    std::variant<EmbedPhase, HashedEmbedPhase, PreparePhase, MultiplyPhase, AppendPhase, AttendPhase,
                 JoinPhase, IndexPhase, HeadsPhase, CopyPhase, RotatePhase, RopePhase, MixPhase, StreamsPhase,
                 LerpPhase, ExpertsPhase, ScanPhase, SelectPhase, LogitsPhase>;

// One list of phases per part of the program.
std::vector<std::vector<Phase>> plan(const Program &program);

}  // namespace runnel::kernels::cpu
