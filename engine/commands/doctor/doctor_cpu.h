// Checks the CPU's kernels: every instruction set of this machine against the scalar one, to the bit, and
// the scalar one against double precision.
#pragma once

#include <vector>

#include "engine/commands/doctor/doctor_report.h"
#include "kernels/cpu/linear.h"
#include "kernels/program.h"

namespace runnel::commands {

// The kernel tables that run here, the scalar one first.
std::vector<const kernels::cpu::LinearKernels *> linear_kernels();

// One finding per format of the program's matrices (with a few rows of the widest), and one for the operators
// between the matrices. `kernels`: the tables to compare, the reference first.
std::vector<Finding> check_cpu_kernels(const kernels::Program &program,
                                       const std::vector<const kernels::cpu::LinearKernels *> &kernels);

}  // namespace runnel::commands
