#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/devices.h"

namespace runnel::commands {

namespace {

Json to_json(const kernels::DeviceInfo &device) {
    return {{"kind", device.kind},
            {"name", device.name},
            {"memory_total", device.memory_total},
            {"memory_free", device.memory_free}};
}

std::string to_line(const kernels::DeviceInfo &device) {
    char memory[80];
    std::snprintf(memory, sizeof memory, ", %.1f GiB memory, %.1f GiB free\n",
                  static_cast<double>(device.memory_total) / 0x1p30,
                  static_cast<double>(device.memory_free) / 0x1p30);
    std::string kind = device.kind;
    kind.resize(std::max<size_t>(kind.size(), 6), ' ');
    return kind + " " + device.name + memory;
}

}  // namespace

int devices(const DevicesOptions &options, Io &io) {
    std::vector<kernels::DeviceInfo> all = {kernels::cpu::make_cpu_backend(0)->info()};
    const kernels::cuda::Devices cuda = kernels::cuda::find_devices();
    all.insert(all.end(), cuda.found.begin(), cuda.found.end());
    if (options.json) {
        Json list = Json::array();
        for (const auto &device : all) list.push_back(to_json(device));
        io.out.write(dump(Json{{"devices", list}}));
        return exit_code::kDone;
    }
    for (const auto &device : all) io.out.write(to_line(device));
    if (cuda.found.empty()) io.out.write("cuda   none: " + cuda.why_none + "\n");
    return exit_code::kDone;
}

}  // namespace runnel::commands
