#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/runtime/devices.h"

namespace runnel::commands {

namespace {

struct Listed {
    kernels::DeviceInfo info;
    std::string problem;  // why it cannot be used, or empty
};

// Opens every GPU; one that is busy or broken is listed with the reason.
std::vector<Listed> all_devices(const std::vector<kernels::DeviceInfo> &gpus) {
    std::vector<Listed> all = {{kernels::cpu::make_cpu_backend(0)->info(), ""}};
    for (size_t i = 0; i < gpus.size(); ++i) {
        all.push_back({gpus[i], ""});
        Listed &gpu = all.back();
        try {
            gpu.info.memory_free = kernels::cuda::free_memory(static_cast<int>(i));
        } catch (const kernels::BackendError &error) {
            gpu.problem = error.what();
        }
    }
    return all;
}

Json to_json(const Listed &listed) {
    const kernels::DeviceInfo &device = listed.info;
    Json json = {{"kind", device.kind},
                 {"name", device.name},
                 {"memory_total", device.memory_total},
                 {"memory_free", device.memory_free}};
    if (!listed.problem.empty()) json["problem"] = listed.problem;
    return json;
}

std::string to_line(const Listed &listed) {
    const kernels::DeviceInfo &device = listed.info;
    char memory[80];
    std::snprintf(memory, sizeof memory, ", %.1f GiB memory, %.1f GiB free\n",
                  static_cast<double>(device.memory_total) / 0x1p30,
                  static_cast<double>(device.memory_free) / 0x1p30);
    std::string kind = device.kind;
    kind.resize(std::max<size_t>(kind.size(), 6), ' ');
    return kind + " " + device.name + (listed.problem.empty() ? memory : ": " + listed.problem + "\n");
}

}  // namespace

int devices(const DevicesOptions &options, Io &io) {
    const kernels::cuda::Devices cuda = kernels::cuda::find_devices();
    const std::vector<Listed> all = all_devices(cuda.found);
    if (options.json) {
        Json list = Json::array();
        for (const Listed &device : all) list.push_back(to_json(device));
        io.out.write(dump(Json{{"devices", list}}));
        return exit_code::kDone;
    }
    for (const Listed &device : all) io.out.write(to_line(device));
    if (cuda.found.empty()) io.out.write("cuda   none: " + cuda.why_none + "\n");
    return exit_code::kDone;
}

}  // namespace runnel::commands
