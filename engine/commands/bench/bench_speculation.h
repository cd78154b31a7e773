// What drafts gain on this machine: `bench` with --draft-model, --lookup or --self-draft.
#pragma once

#include "engine/commands/io.h"
#include "engine/commands/options.h"

namespace runnel::commands {

// Plain and speculative decoding side by side: on a text with the sources that were asked for, and on a
// forced text with a source whose acceptance is set by hand, for several acceptances and lengths, against the
// bound that the measured costs of passes set. Throws what bench() does.
int bench_speculation(const BenchOptions &options, Io &io);

}  // namespace runnel::commands
