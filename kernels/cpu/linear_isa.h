// The kernel tables of the instruction sets; linear.cpp returns them if the CPU can run them.
//
// Files named *_avx2.cpp, *_avx512.cpp and *_amx.cpp are compiled for those CPUs. They must not emit symbols that the
// linker may merge with another file's copy (inline functions and templates with external linkage):
// everything in them, and in the headers that only they include, lives in an anonymous namespace.
#pragma once

#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_lookup.h"

namespace runnel::kernels::cpu {

extern const LinearKernels kLinearScalar;
extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;
extern const LinearKernels kLinearAmx;
extern const LookupKernels kLookupAvx2;
extern const LookupKernels kLookupAvx512;

}  // namespace runnel::kernels::cpu
