// Everything a CUDA kernel uses beyond plain C++: the one header where PTX and vendor intrinsics live.
//
// Kernels are written once, in .cu files, and compiled twice: by nvcc for the device (device_nvcc.h: inline
// PTX) and by g++ for the emulator of tests/simt/ (device_emulated.h: declarations; every function below
// checks its preconditions there). Kernels contain no asm, no __CUDA_ARCH__ and no CUDA built-ins.
//
// Rules for kernels, which the emulator enforces:
//   - blocks and grids are one-dimensional, a block is whole warps;
//   - every collective (marked "warp" or "block" below) is reached by all its threads at one place in the
//     source: none in divergent code, none after an early return;
//   - shared memory is one struct, shared_memory<T>(), whose size the launch states;
//   - matrices whose contents never change are read with ldg*_stream; everything else with plain C++ or
//   ld128;
//   - a kernel launched as a dependent (programmatic dependent launch) may read weights, and only those,
//     before grid_dep_wait(), which every thread executes or has behind a barrier.
//
// Float arithmetic: -fmad=false on the device and -ffp-contract=off on the host, so that a * b + c rounds
// twice in both and fma_rn once in both; +, -, *, / and sqrt_rn are IEEE on both. With the polynomials of
// math.h all float results are the same bits on every device and in the emulator, except those of the
// floating-point mma, whose order of summation the hardware does not say.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include "kernels/cuda/device_nvcc.h"
#else
#include "kernels/cuda/device_emulated.h"
#endif

// DEVICE marks a function of kernels, DEVICE_DATA a constant array that they index.
