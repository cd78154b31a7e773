#include "engine/decode/tensor_plan.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "engine/decode/device.h"
#include "engine/decode/error.h"
#include "engine/model/layers.h"
#include "gguf/base/bytes.h"
#include "kernels/divided_groups.h"
#include "kernels/tensor_program.h"

namespace runnel::decode {
namespace {

using Gpus = std::vector<kernels::DevicePtr>;

std::vector<double> shares_of(const Gpus &gpus, const std::vector<double> &requested) {
    if (!requested.empty()) return requested;
    std::vector<double> bandwidths;
    for (const kernels::DevicePtr &gpu : gpus) bandwidths.push_back(gpu->info().bandwidth);
    const bool known = std::ranges::all_of(bandwidths, [](double bandwidth) { return bandwidth > 0; });
    return known ? bandwidths : std::vector<double>(gpus.size(), 1);
}

std::string option_of(const ContextRequest &context, kernels::MatrixCut matrices) {
    if (context.ranks > 1) return option_of(Split::Context);
    return option_of(matrices == kernels::MatrixCut::Columns ? Split::Columns : Split::Tensor);
}

// CacheConfig::shares. Throws if the cells are to be divided, but there are none.
std::vector<int32_t> cache_shares(const kernels::Program &program, const ContextRequest &context) {
    std::vector<int32_t> shares = kernels::divided_groups(program, context.ranks);
    if (context.ranks > 1 && std::ranges::count(shares, context.ranks) == 0)
        throw DecodeError(
            DecodeError::Kind::BadInput,
            "--split context divides the cells of attention without a window, which this model does "
            "not have: choose --split tensor");
    return shares;
}

void expect_kernels(const kernels::Program &program, const kernels::Device &gpu, const std::string &option) {
    for (const std::string &missing : gpu.missing(program))
        if (!missing.empty())
            throw kernels::BackendError(
                kernels::BackendError::Kind::NoKernel,
                option + " runs every step on the GPUs, but " + missing + ": choose --split layer");
}

// Names the GPU with the least room next to its rows.
[[noreturn]] void fail_to_fit(const kernels::TensorProgram &tensor, const Gpus &gpus, const FreeMemory &free,
                              const ContextRequest &request, const std::string &option) {
    const auto need = [&](size_t r) { return gpus[r]->need(tensor.programs[r], {}, request.batch).all(); };
    const auto room = [&](size_t r) { return static_cast<double>(free[r]) - static_cast<double>(need(r)); };
    size_t tightest = 0;
    for (size_t r = 1; r < gpus.size(); ++r)
        if (room(r) < room(tightest)) tightest = r;
    throw DecodeError(
        DecodeError::Kind::OutOfMemory,
        "the model does not fit with " + option + ": " + gpus[tightest]->name() + " has " +
            base::mebibytes(free[tightest]) + " free, and its rows need " + base::mebibytes(need(tightest)) +
            " without the cache: choose a smaller context with -c, other shares with --tensor-split, or "
            "--split layer");
}

}  // namespace

TensorPlan plan_tensor_split(const kernels::Program &program, const Gpus &gpus,
                             const PlacementRequest &request, const ContextRequest &context,
                             kernels::MatrixCut matrices) {
    const int32_t layers = model::layers_of(program).count;
    const std::string option = option_of(context, matrices);
    if (request.gpu_layers && *request.gpu_layers <= layers)
        throw DecodeError(
            DecodeError::Kind::BadInput,
            option + " runs all layers on the GPUs: leave out --gpu-layers, or choose --split layer");
    if (request.cpu_experts)
        throw DecodeError(DecodeError::Kind::BadInput,
                          option +
                              " runs all experts on the GPUs: leave out --cpu-moe and --n-cpu-moe, or choose "
                              "--split layer");
    if (request.gpu_experts)
        throw DecodeError(DecodeError::Kind::BadInput,
                          option +
                              " keeps all experts on the GPUs: leave out --gpu-experts, or choose "
                              "--split layer");
    std::vector<double> shares = shares_of(gpus, request.shares);
    assert(shares.size() == gpus.size());
    const kernels::TensorProgram tensor =
        kernels::cut_program(program, shares, cache_shares(program, context), matrices);
    FreeMemory free;
    std::vector<CacheBudget> budgets;
    for (size_t r = 0; r < gpus.size(); ++r) {
        expect_kernels(tensor.programs[r], *gpus[r], option);
        const size_t all = gpus[r]->free_memory();
        const size_t gathers = gpus.size() > 1 ? gpus[r]->gather_need(tensor.programs[r], context.batch) : 0;
        free.push_back(all - std::min(all, gathers));
        budgets.push_back(budget_of_share(budget_of(*gpus[r], tensor.programs[r], free.back(), context), r));
    }
    budgets.front() = budget_beside(std::move(budgets.front()), context);
    const auto plan = plan_context(program, budgets, context);
    if (!plan) fail_to_fit(tensor, gpus, free, context, option);
    return {std::move(shares), *plan, matrices, tensor.by_columns};
}

TensorPlan plan_processes(const kernels::Program &program, const kernels::DevicePtr &cpu, int processes,
                          const PlacementRequest &request, const ContextRequest &context) {
    const auto ranks = static_cast<size_t>(processes);
    std::vector<double> shares = request.shares.empty() ? std::vector<double>(ranks, 1) : request.shares;
    if (shares.size() != ranks)
        throw DecodeError(DecodeError::Kind::BadInput, "--tensor-split has " + std::to_string(shares.size()) +
                                                           " shares, but there are " + std::to_string(ranks) +
                                                           " processes");
    const kernels::TensorProgram tensor =
        kernels::cut_program(program, shares, cache_shares(program, context));
    ContextRequest each = context;
    each.cache_size = 0;
    std::vector<CacheBudget> budgets;
    for (size_t r = 0; r < ranks; ++r) {
        const kernels::Program &own = tensor.programs[r];
        CacheBudget budget{static_cast<size_t>(context.cache_size),
                           [&own](const kernels::CacheConfig &cache, const CacheShape &) {
                               return kernels::block_bytes(own, cache);
                           }};
        if (context.cache_size == 0) budget = budget_of(*cpu, own, cpu->free_memory(), context);
        budgets.push_back(budget_of_share(std::move(budget), r));
    }
    // (As with one process, --cache-size is the model's alone.)
    if (context.cache_size == 0) budgets.front() = budget_beside(std::move(budgets.front()), context);
    const auto plan = plan_context(program, budgets, each);
    if (!plan && context.cache_size > 0)
        throw DecodeError(
            DecodeError::Kind::OutOfMemory,
            "the cache of this context does not fit into the --cache-size of each process: choose "
            "a shorter context with -c, a larger --cache-size, or more processes");
    if (!plan)
        throw DecodeError(
            DecodeError::Kind::OutOfMemory,
            context.beside ? "the cache of this context and that of the drafting layers, which the first "
                             "process has whole, do not fit into the free memory next to the weights: choose "
                             "a shorter context with -c, or no drafts"
                           : "the cache of this context does not fit into the free memory next to the "
                             "weights: choose a shorter context with -c, or more machines");
    return {std::move(shares), *plan};
}

}  // namespace runnel::decode
