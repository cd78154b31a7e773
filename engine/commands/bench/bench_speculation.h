// `bench` with --draft-model, --lookup or --self-draft: measures what drafts gain on this machine.
#pragma once

#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

// Compares plain and speculative decoding: on a text with the requested sources, and on a forced text with a
// synthetic source, for several acceptance rates and draft lengths, against the bound that the measured costs
// of passes set. Throws what bench() does.
int bench_speculation(const BenchOptions &options, Io &io);

}  // namespace runnel::commands
