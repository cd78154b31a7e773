// `bench` with --draft-model, --mtp, --lookup or --self-draft: measures what drafts gain on this machine.
#pragma once

#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

// Compares plain with speculative decoding: on a text with the requested draft sources, then on a forced text
// with a synthetic source, for several acceptance rates and draft lengths. Each gain is shown beside the
// bound that follows from the measured pass costs. With --mtp also: the costs of the file's draft block. Throws what
// bench() throws.
int bench_speculation(const BenchOptions &options, Io &io);

}  // namespace runnel::commands
