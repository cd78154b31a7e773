// What a user sees while a model goes to a GPU: a bar on a terminal, once that has taken a second.
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

// For EngineOptions::progress: shows the line on stderr when that is a terminal (and not with -q), at most
// five times a second, and takes it away again. An interrupt ends the loading; a deadline does not, as it is
// for the answer. Keeps `io` and `stop`.
kernels::LoadProgress load_progress(Io &io, const decode::StopRequest &stop);

}  // namespace runnel::commands
