// The CPU's own kernels: every instruction set that this machine runs against the plainest of them, to the
// bit, and that against double precision.
#pragma once

#include <vector>

#include "engine/commands/doctor/doctor_report.h"
#include "kernels/cpu/linear.h"
#include "kernels/program.h"

namespace runnel::commands {

// The tables of kernels that run here, the plainest first.
std::vector<const kernels::cpu::LinearKernels *> linear_kernels();

// A finding per format of the program's matrices (with a few rows of the widest of them), and one for the
// operators between the matrices. `kernels`: the tables to compare, the reference first.
std::vector<Finding> check_cpu_kernels(const kernels::Program &program,
                                       const std::vector<const kernels::cpu::LinearKernels *> &kernels);

}  // namespace runnel::commands
