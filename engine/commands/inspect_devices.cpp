#include "engine/commands/inspect_devices.h"

#include "engine/commands/figures.h"

namespace runnel::commands {
namespace {

using measure::DevicePlan, measure::DevicePlanRequest, measure::PlannedDevice;

DevicePlan plan_for(const kernels::Program &program, const PlannedFormat &format, DevicePlanRequest request) {
    request.format = format.type;
    return measure::plan_devices(program, request);
}

// "4 x 80.0 GiB (3350 GB/s)"; equal neighbors together.
std::string list_of(const std::vector<PlannedDevice> &devices) {
    std::string text;
    for (size_t i = 0; i < devices.size();) {
        size_t end = i + 1;
        while (end < devices.size() && devices[end].memory == devices[i].memory &&
               devices[end].bandwidth == devices[i].bandwidth)
            ++end;
        text += (text.empty() ? "" : ", ") + std::to_string(end - i) + " x " +
                size_text(static_cast<uint64_t>(devices[i].memory), 1);
        if (devices[i].bandwidth > 0) text += format(" (%.0f GB/s)", devices[i].bandwidth / 1e9);
        i = end;
    }
    return text;
}

// "3 x 20 + 21"; equal neighbors together.
std::string layers_text(const DevicePlan &plan) {
    std::string text;
    for (size_t i = 0; i < plan.layers.size();) {
        size_t end = i + 1;
        while (end < plan.layers.size() && plan.layers[end] == plan.layers[i]) ++end;
        text += text.empty() ? "" : " + ";
        if (end - i > 1) text += std::to_string(end - i) + " x ";
        text += std::to_string(plan.layers[i]);
        i = end;
    }
    return text;
}

}  // namespace

std::string devices_text(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                         const DevicePlanRequest &request) {
    bool predicts = true;
    for (const PlannedDevice &device : request.devices) predicts = predicts && device.bandwidth > 0;
    std::string text = "\nlayers on " + list_of(request.devices) + ", by --split layer;\n" +
                       size_text(static_cast<uint64_t>(measure::kSpareMemory), 0) +
                       " of each is left for the driver and activations\n\n";
    text += "format    context that fits";
    if (predicts) text += "  predicted tokens/s";
    text += "  layers\n";
    for (const PlannedFormat &one : formats) {
        const DevicePlan plan = plan_for(program, one, request);
        text += format("%-9s ", one.name.c_str());
        text +=
            plan.context > 0 ? format("%17lld", static_cast<long long>(plan.context)) : format("%17s", "-");
        if (predicts) text += plan.predicted ? format("  %18.1f", *plan.predicted) : format("  %18s", "-");
        text += "  " + layers_text(plan);
        if (plan.left > 0) text += format(" (%d do not fit)", plan.left);
        text += '\n';
    }
    if (!predicts)
        return text +
               "\nThe bandwidth of the devices' memory in GB/s adds a predicted speed:\n"
               "--devices 4x80G@3350\n";
    return text + format(
                      "\nThe speed is predicted, not measured: decode of one sequence after %lld\n"
                      "tokens, one device after the other: 1 / (sum over devices of (weights +\n"
                      "K and V) / bandwidth + sum over borders of (row / link + latency)), with\n"
                      "nominal bandwidths and an assumed link, %s: %.1f GB/s, %.0f microseconds.\n",
                      static_cast<long long>(request.filled), std::string(request.link.name).c_str(),
                      request.link.bandwidth / 1e9, request.link.latency * 1e6);
}

Json devices_json(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                  const DevicePlanRequest &request) {
    Json devices = Json::array(), plans = Json::array();
    for (const PlannedDevice &device : request.devices)
        devices.push_back({{"memory", device.memory},
                           {"bandwidth", device.bandwidth > 0 ? Json(device.bandwidth) : Json()}});
    for (const PlannedFormat &one : formats) {
        const DevicePlan plan = plan_for(program, one, request);
        plans.push_back({{"format", one.name},
                         {"layers", plan.layers},
                         {"layers_that_do_not_fit", plan.left},
                         {"context_that_fits", plan.context},
                         {"predicted_tokens_per_second", plan.predicted ? Json(*plan.predicted) : Json()}});
    }
    return {{"devices", std::move(devices)},
            {"spare_memory", measure::kSpareMemory},
            {"link",
             {{"name", std::string(request.link.name)},
              {"bandwidth", request.link.bandwidth},
              {"latency", request.link.latency}}},
            {"predicted_at", request.filled},
            {"plans", std::move(plans)}};
}

}  // namespace runnel::commands
