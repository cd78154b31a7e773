#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "kernels/device.h"

namespace runnel::commands {

namespace {

struct Listed {
    kernels::DeviceInfo info;
    std::string problem;  // why it cannot be used; else empty
};

// Opens every GPU; a busy or broken one is listed with the reason.
std::vector<Listed> all_devices(const kernels::Devices &found) {
    std::vector<Listed> all = {{found.cpu->info(), ""}};
    for (const kernels::DevicePtr &gpu : found.gpus) {
        all.push_back({gpu->info(), ""});
        Listed &listed = all.back();
        try {
            listed.info.memory_free = gpu->free_memory();
        } catch (const kernels::BackendError &error) {
            listed.problem = error.what();
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

std::string padded(std::string kind) {
    kind.resize(std::max<size_t>(kind.size(), 6), ' ');
    return kind;
}

std::string to_line(const Listed &listed) {
    const kernels::DeviceInfo &device = listed.info;
    char memory[80];
    std::snprintf(memory, sizeof memory, ", %.1f GiB memory, %.1f GiB free\n",
                  static_cast<double>(device.memory_total) / 0x1p30,
                  static_cast<double>(device.memory_free) / 0x1p30);
    return padded(device.kind) + " " + device.name +
           (listed.problem.empty() ? memory : ": " + listed.problem + "\n");
}

}  // namespace

int devices(const DevicesOptions &options, Io &io) {
    const kernels::Devices found = kernels::devices();
    const std::vector<Listed> all = all_devices(found);
    if (options.json) {
        Json list = Json::array();
        for (const Listed &device : all) list.push_back(to_json(device));
        io.out.write(dump(Json{{"devices", list}}));
        return exit_code::kDone;
    }
    for (const Listed &device : all) io.out.write(to_line(device));
    if (found.gpus.empty()) io.out.write(padded(found.gpu_kind) + " none: " + found.why_no_gpu + "\n");
    return exit_code::kDone;
}

}  // namespace runnel::commands
