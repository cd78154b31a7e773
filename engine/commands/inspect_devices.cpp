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

using Plans = std::vector<std::optional<measure::SharedPlan>>;  // by format
Plans plans_for(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                DevicePlanRequest request, decode::Split split) {
    Plans plans;
    for (const PlannedFormat &one : formats) {
        request.format = one.type;
        plans.push_back(measure::plan_shared(program, request, split));
    }
    return plans;
}

std::string cells_text(int64_t cells, int width) {
    return cells > 0 ? format("%*lld", width, static_cast<long long>(cells)) : format("%*s", width, "-");
}
std::string speed_text(const std::optional<double> &speed, int width) {
    return speed ? format("%*.1f", width, *speed) : format("%*s", width, "-");
}

// The plans in which every device runs every layer.
std::string shared_text(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                        const DevicePlanRequest &request, bool predicts) {
    const Plans tensor = plans_for(program, formats, request, decode::Split::Tensor),
                columns = plans_for(program, formats, request, decode::Split::Columns),
                context = plans_for(program, formats, request, decode::Split::Context);
    const bool divides = context.front().has_value();
    const std::string fits = "  context that fits", speed = "    tokens/s";
    std::string text = "\nevery layer on all of them, by --split tensor";
    if (predicts) text += " (its tokens/s with columns: by --split columns)";
    if (divides) text += predicts ? ",\nand by --split context" : " and by --split context";
    text += "\n\nformat  " + fits;
    if (predicts) text += speed + "  with columns";
    if (divides) text += fits;
    if (divides && predicts) text += speed;
    for (size_t i = 0; i < formats.size(); ++i) {
        text += format("\n%-8s", formats[i].name.c_str()) + "  " + cells_text(tensor[i]->context, 17);
        if (predicts)
            text +=
                "  " + speed_text(tensor[i]->predicted, 10) + "  " + speed_text(columns[i]->predicted, 12);
        if (!divides) continue;
        text += "  " + cells_text(context[i]->context, 17);
        if (predicts) text += "  " + speed_text(context[i]->predicted, 10);
    }
    return text + '\n';
}

Json shared_json(const std::optional<measure::SharedPlan> &plan) {
    if (!plan) return {};
    return {{"context_that_fits", plan->context},
            {"predicted_tokens_per_second", plan->predicted ? Json(*plan->predicted) : Json()}};
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
        text += format("%-9s ", one.name.c_str()) + cells_text(plan.context, 17);
        if (predicts) text += "  " + speed_text(plan.predicted, 18);
        text += "  " + layers_text(plan);
        if (plan.left > 0) text += format(" (%d do not fit)", plan.left);
        text += '\n';
    }
    if (request.devices.size() > 1) text += shared_text(program, formats, request, predicts);
    if (!predicts)
        return text +
               "\nThe bandwidth of the devices' memory in GB/s adds a predicted speed:\n"
               "--devices 4x80G@3350\n";
    text += format("\nThe speed is predicted, not measured: decode of one sequence after %lld\n",
                   static_cast<long long>(request.filled));
    text +=
        "tokens. Layers: one device after the other, 1 / (sum over devices of (weights +\n"
        "K and V) / bandwidth + sum over borders of (row / link + latency)). Otherwise\n"
        "side by side, 1 / (the slowest device's (weights + K and V) / bandwidth + sum\n"
        "over what is gathered of (bytes / link + latency)). Nominal bandwidths, and\n";
    text +=
        format("an assumed link, %s: %.1f GB/s, %.0f microseconds.\n", std::string(request.link.name).c_str(),
               request.link.bandwidth / 1e9, request.link.latency * 1e6);
    return text;
}

Json devices_json(const kernels::Program &program, const std::vector<PlannedFormat> &formats,
                  const DevicePlanRequest &request) {
    Json devices = Json::array(), plans = Json::array();
    for (const PlannedDevice &device : request.devices)
        devices.push_back({{"memory", device.memory},
                           {"bandwidth", device.bandwidth > 0 ? Json(device.bandwidth) : Json()}});
    for (const PlannedFormat &one : formats) {
        const DevicePlan plan = plan_for(program, one, request);
        plans.push_back(
            {{"format", one.name},
             {"layers", plan.layers},
             {"layers_that_do_not_fit", plan.left},
             {"context_that_fits", plan.context},
             {"predicted_tokens_per_second", plan.predicted ? Json(*plan.predicted) : Json()},
             {"tensor", shared_json(plans_for(program, {one}, request, decode::Split::Tensor)[0])},
             {"columns", shared_json(plans_for(program, {one}, request, decode::Split::Columns)[0])},
             {"context", shared_json(plans_for(program, {one}, request, decode::Split::Context)[0])}});
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
