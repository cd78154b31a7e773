// Is the file what its publisher wrote? All its data are read and looked at for damage (gguf/scan.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/commands/doctor/doctor_report.h"
#include "gguf/file.h"

namespace runnel::commands {

// A finding for every damaged tensor and every one with suspiciously many zeros, damaged ones first (the
// first 20 of all), and one for the whole, which is Wrong where a tensor is. `progress`(bytes read, bytes in
// all) is called now and then, by one thread at a time. Reads with `threads` threads; throws what starting
// them throws.
std::vector<Finding> check_file(const gguf::File &file, int threads,
                                const std::function<void(uint64_t, uint64_t)> &progress = {});

}  // namespace runnel::commands
