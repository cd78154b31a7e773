// The progress of loading a model onto a GPU: a bar on a terminal, shown after the first second.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "engine/commands/io.h"
#include "engine/decode/stop_request.h"
#include "kernels/backend.h"

namespace runnel::commands {

// "loading [####----]  50%  2.3 of 4.6 GiB  5.1 GB/s"
std::string load_line(size_t done, size_t all, double seconds);

// For EngineOptions::progress: shows the line on stderr if that is a terminal (and without -q), at most five
// times a second, and removes it at the end. An interrupt ends the loading; a deadline does not, because it
// limits the answer. Keeps references to `io` and `stop`.
kernels::LoadProgress load_progress(Io &io, const decode::StopRequest &stop);

}  // namespace runnel::commands
