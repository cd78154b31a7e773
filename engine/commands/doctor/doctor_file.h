// Checks whether the file is intact: reads all of its data and looks for damage (gguf/scan.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/commands/doctor/doctor_report.h"
#include "gguf/file.h"

namespace runnel::commands {

// One finding for every damaged tensor and every tensor with suspiciously many zeros, damaged ones first (at
// most 20), and a summary, which is Wrong if any tensor is. `progress`(bytes read, total bytes) is called
// from time to time, by one thread at a time. Reads with `threads` threads; throws if they cannot be
// started.
std::vector<Finding> check_file(const gguf::File &file, int threads,
                                const std::function<void(uint64_t, uint64_t)> &progress = {});

}  // namespace runnel::commands
