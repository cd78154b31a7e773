// Test cases that cannot run here, reported and counted instead of passing silently.
#pragma once

#include <string>

namespace runnel::testing {

// Records that the running test case, or a part of it, was left out. The summary line of the run counts
// such cases, and CI fails on them. Only for what a machine may rightly lack (the shared data folder, nvcc,
// an instruction set): a program that was not built, or a wrong working directory, is a failure.
void skip(const std::string &reason);

}  // namespace runnel::testing
