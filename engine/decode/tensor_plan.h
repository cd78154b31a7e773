// Plans --split tensor, --split columns and --split context: every device runs all layers, each its rows of every matrix
// (kernels/tensor_program.h). With ContextRequest::ranks, as many as devices, they divide the cells of layers without a window,
// otherwise the K/V heads of all layers. The devices are the GPUs of this process, or the CPUs of several processes. What
// runs beside the model (ContextRequest::beside) takes memory of the first one alone.
#pragma once

#include <vector>

#include "engine/decode/cache_plan.h"
#include "engine/decode/placement.h"
#include "kernels/device.h"
#include "kernels/program.h"
#include "kernels/tensor_program.h"

namespace runnel::decode {

struct TensorPlan {
    std::vector<double> shares;  // of the rows, by device
    ContextPlan context;
    kernels::MatrixCut matrices = kernels::MatrixCut::Rows;
    size_t by_columns = 0;  // matrices that are cut by columns
};

// The shares are the request's, or in proportion to the bandwidth of the GPUs' memory, or equal if that is not known of all.
// Throws DecodeError{BadInput} if the request leaves something on the CPU or there are no cells to divide,
// DecodeError{OutOfMemory} when no context fits,
// and kernels::BackendError if a GPU cannot be opened or has no kernel for a step.
TensorPlan plan_tensor_split(const kernels::Program &program, const std::vector<kernels::DevicePtr> &gpus,
                             const PlacementRequest &request, const ContextRequest &context,
                             kernels::MatrixCut matrices = kernels::MatrixCut::Rows);

// For so many processes on CPUs like this one. The shares are the request's, or equal. ContextRequest::cache_size is the
// limit of each process. Throws DecodeError as above.
TensorPlan plan_processes(const kernels::Program &program, const kernels::DevicePtr &cpu, int processes,
                          const PlacementRequest &request, const ContextRequest &context);

}  // namespace runnel::decode
