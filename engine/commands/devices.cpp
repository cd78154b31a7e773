#include <cstdio>

#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "kernels/cpu/cpu_backend.h"

namespace runnel::commands {

int devices(const DevicesOptions &options, Io &io) {
    const kernels::DeviceInfo cpu = kernels::cpu::make_cpu_backend(0)->info();
    if (options.json) {
        const Json device = {{"kind", cpu.kind},
                             {"name", cpu.name},
                             {"memory_total", cpu.memory_total},
                             {"memory_free", cpu.memory_free}};
        io.out.write(dump(Json{{"devices", Json::array({device})}}));
        return exit_code::kDone;
    }
    char line[256];
    std::snprintf(line, sizeof line, "%-6s %s, %.1f GiB memory, %.1f GiB free\n", cpu.kind.c_str(),
                  cpu.name.c_str(), static_cast<double>(cpu.memory_total) / 0x1p30,
                  static_cast<double>(cpu.memory_free) / 0x1p30);
    io.out.write(line);
    return exit_code::kDone;
}

}  // namespace runnel::commands
