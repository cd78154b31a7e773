#include "engine/decode/device.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "kernels/backend.h"

namespace runnel::decode {
namespace {

// Stops at a GPU that has 90% of the next one's total memory free: opening a GPU takes some of its memory.
kernels::DevicePtr most_memory(std::vector<kernels::DevicePtr> gpus) {
    const kernels::DevicePtr first = gpus.front();
    if (gpus.size() == 1) return first;
    const auto total = [](const kernels::DevicePtr &gpu) { return gpu->info().memory_total; };
    std::ranges::stable_sort(gpus, std::greater(), total);
    kernels::DevicePtr best = gpus.front();
    size_t most = 0;
    for (const kernels::DevicePtr &gpu : gpus) {
        if (most >= total(gpu) / 10 * 9) break;
        try {
            const size_t free = gpu->free_memory();
            if (free > most) most = free, best = gpu;
        } catch (const kernels::BackendError &) {
            // Another GPU may work; if none does, loading reports the error.
        }
    }
    return best;
}

std::vector<std::string> names_in(const std::string &list) {
    std::vector<std::string> names;
    for (size_t at = 0; at <= list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        names.push_back(list.substr(at, end - at));
        at = end + 1;
    }
    return names;
}

[[noreturn]] void fail_choice(const std::string &what) {
    throw kernels::BackendError(kernels::BackendError::Kind::Failed, what);
}

std::string how_many(const kernels::Devices &found) {
    if (found.gpus.empty()) return found.why_no_gpu;
    if (found.gpus.size() == 1) return "there is only one GPU";
    return "there are only " + std::to_string(found.gpus.size()) + " GPUs";
}

// The GPUs with these names, in their order.
std::vector<kernels::DevicePtr> gpus_named(const std::vector<std::string> &names,
                                           const kernels::Devices &found) {
    std::vector<kernels::DevicePtr> gpus;
    for (const std::string &name : names) {
        const auto gpu = std::ranges::find(found.gpus, name, [](const auto &one) { return one->name(); });
        if (gpu == found.gpus.end())
            fail_choice("--device " + name + ": " + how_many(found) + " (--device cpu needs no GPU)");
        gpus.push_back(*gpu);
    }
    return gpus;
}

void sort_fastest_first(std::vector<kernels::DevicePtr> &gpus) {
    std::ranges::stable_sort(gpus, std::greater(), [](const kernels::DevicePtr &gpu) {
        const kernels::DeviceInfo info = gpu->info();
        return std::pair(info.bandwidth, info.memory_total);
    });
}

}  // namespace

bool is_device_name(const std::string &name) {
    if (name == "auto") return true;
    const std::vector<std::string> names = names_in(name);
    if (names.size() == 1) return kernels::is_device_name(name);
    const auto is_gpu = [](const std::string &one) {
        return kernels::is_device_name(one) && one.find(':') != std::string::npos;
    };
    return std::ranges::all_of(names, is_gpu) && std::set(names.begin(), names.end()).size() == names.size();
}

std::string option_of(Split split) {
    switch (split) {
        case Split::Layer:
            return "--split layer";
        case Split::Tensor:
            return "--split tensor";
        case Split::Columns:
            return "--split columns";
        case Split::Context:
            return "--split context";
        case Split::None:
            return "--split none";
    }
    return "";
}

DeviceChoice choose_device(const DeviceRequest &request, const kernels::Devices &found) {
    const std::optional<int64_t> wanted = request.placement.gpu_layers;
    const bool all_layers = runs_all_layers(request.split);
    const auto expect_several = [&](bool are, const std::string &why) {
        if (!all_layers || are) return;
        const bool by_cells = request.split == Split::Context;
        fail_choice(option_of(request.split) + " needs several GPUs" +
                    (by_cells ? ", or processes (mpirun -n 2 runnel-mpi)" : "") + ", but " + why);
    };
    if (request.device == found.cpu->name() || (wanted && *wanted <= 0)) {
        expect_several(false, "nothing is to run on a GPU");
        return {};
    }
    const bool required = request.device != "auto", any = !required || request.device == found.gpu_kind;
    std::vector<kernels::DevicePtr> gpus = found.gpus;
    if (!any) gpus = gpus_named(names_in(request.device), found);
    if (gpus.empty() && required)
        fail_choice("--device " + request.device + ": " + how_many(found) + " (--device cpu needs no GPU)");
    expect_several(!gpus.empty(), how_many(found));
    if (gpus.empty()) return {.note = wanted ? how_many(found) + ": everything runs on the CPU" : ""};
    if (request.split == Split::None) return {.gpus = {most_memory(std::move(gpus))}, .required = required};
    const size_t shares = request.placement.shares.size();
    if (shares > gpus.size())
        fail_choice("--tensor-split has " + std::to_string(shares) + " shares, but " +
                    (any ? how_many(found) : "--device names " + std::to_string(gpus.size())));
    if (shares > 0) gpus.resize(shares);
    expect_several(gpus.size() >= 2, shares > 0 ? "--tensor-split has one share"
                                     : any      ? how_many(found)
                                                : "--device names one");
    const bool fixed = all_layers || shares > 0 || (!any && gpus.size() > 1);
    if (!fixed) sort_fastest_first(gpus);
    return {.gpus = std::move(gpus), .required = required || all_layers || shares > 0, .fixed = fixed};
}

}  // namespace runnel::decode
