// Planned devices, compared with the formulas written out.
#include "engine/measure/device_plan.h"

#include <doctest/doctest.h>

#include <numeric>

#include "engine/measure/planner.h"

namespace runnel::measure {
namespace {

using gguf::Type;

constexpr double kGiB = 0x1p30;
constexpr const char *kSeventyBillion = "layers=80,width=8192,heads=64,kv-heads=8,ff=28672,vocab=128256";

std::vector<PlannedDevice> devices(std::initializer_list<int64_t> gibibytes, double bandwidth = 0) {
    std::vector<PlannedDevice> all;
    for (const int64_t size : gibibytes) all.push_back({size << 30, bandwidth});
    return all;
}

int32_t sum_of(const DevicePlan &plan) {
    return std::accumulate(plan.layers.begin(), plan.layers.end(), 0);
}

TEST_CASE("device plan: the layers of a large model, and the context that their memory leaves") {
    const kernels::Program program = program_of(parse_shape(kSeventyBillion));
    const auto cell = static_cast<double>(cell_bytes(program, {}));
    const DevicePlan four =
        plan_devices(program, {.devices = devices({80, 80, 80, 80}), .format = Type::Q4_K});
    CHECK(four.layers == std::vector<int32_t>{20, 20, 20, 21});
    CHECK(four.left == 0);
    CHECK(!four.predicted);
    // Without borders between layers, all memory but the spare gibibyte of each device would be used.
    const double most = (4 * 79 * kGiB - weight_bytes(program, Type::Q4_K)) / cell;
    CHECK(static_cast<double>(four.context) < most);
    CHECK(static_cast<double>(four.context) > 0.95 * most);
    const DevicePlan two =
        plan_devices(program, {.devices = devices({80, 80, 80, 80}), .format = Type::Q4_K, .sequences = 2});
    CHECK(static_cast<double>(two.context) ==
          doctest::Approx(static_cast<double>(four.context) / 2).epsilon(0.03));

    // The first devices are filled; the last one gets the rest, or nothing.
    const auto uneven = [&](Type type, int64_t context) {
        return plan_devices(program, {.devices = devices({24, 24, 16}), .format = type, .context = context});
    };
    const DevicePlan short_context = uneven(Type::Q4_K, 8192);
    CHECK(sum_of(short_context) == 81);
    CHECK(short_context.layers[0] > short_context.layers[1]);
    CHECK(short_context.layers[2] == 0);
    CHECK(uneven(Type::Q4_K, 65536).layers[2] > 0);
    const DevicePlan large = uneven(Type::Q8_0, 8192);
    CHECK(large.left > 0);
    CHECK(sum_of(large) + large.left == 81);
    CHECK(large.context == 0);
    CHECK(plan_devices(program, {.devices = devices({1}), .format = Type::Q8_0}).left == 81);
    // The context that fits does fit, and 5% more does not.
    const int64_t fits = uneven(Type::Q4_K, 0).context;
    CHECK(uneven(Type::Q4_K, fits).left == 0);
    CHECK(uneven(Type::Q4_K, fits + fits / 20).left > 0);
}

TEST_CASE("device plan: the predicted speed is that of the formula") {
    const kernels::Program program = program_of(parse_shape(kSeventyBillion));
    const double weights = weight_bytes(program, Type::Q4_K),
                 embedding = 128256.0 * 8192 * 144 / 256;  // 144 bytes for 256 weights; one row of it is read
    const double row = 8192.0 * 144 / 256, bandwidth = 3.35e12;
    const auto cell = static_cast<double>(cell_bytes(program, {}));
    const double alone = (weights - embedding + row + 1000 * cell) / bandwidth;
    const auto predicted = [&](std::vector<PlannedDevice> on, const Link &link) {
        const DevicePlan plan = plan_devices(
            program,
            {.devices = std::move(on), .link = link, .format = Type::Q4_K, .context = 16384, .filled = 1000});
        REQUIRE(plan.predicted);
        return *plan.predicted;
    };
    for (const Link &link : kLinks) {
        CAPTURE(link.name);
        CHECK(predicted(devices({80}, bandwidth), link) == doctest::Approx(1 / alone).epsilon(1e-3));
        const double border = 4 * 8192 / link.bandwidth + link.latency;
        CHECK(predicted(devices({24, 24}, bandwidth), link) ==
              doctest::Approx(1 / (alone + border)).epsilon(1e-3));
        CHECK(predicted(devices({16, 16, 16}, bandwidth), link) ==
              doctest::Approx(1 / (alone + 2 * border)).epsilon(1e-3));
    }
    // The second device has half the bandwidth.
    std::vector<PlannedDevice> uneven = devices({24, 24}, bandwidth);
    uneven[1].bandwidth /= 2;
    const double time = 1 / predicted(uneven, kLinks[2]);
    CHECK(time > 1.2 * alone);
    CHECK(time < 1.8 * alone);
    uneven[1].bandwidth = 0;
    CHECK(!plan_devices(program, {.devices = uneven, .format = Type::Q4_K, .context = 16384}).predicted);
}

TEST_CASE("device plan: every layer on all devices, compared with the formulas written out") {
    const kernels::Program program = program_of(parse_shape(kSeventyBillion));
    const double weights = weight_bytes(program, Type::Q4_K), row = 8192.0 * 144 / 256, table = 128256 * row,
                 bandwidth = 3.35e12;
    const auto cell = static_cast<double>(cell_bytes(program, {}));
    for (const int32_t ranks : {1, 2, 4, 8})
        for (const decode::Split split : {decode::Split::Tensor, decode::Split::Context})
            for (const Link &link : kLinks) {
                const bool by_cells = split == decode::Split::Context;
                CAPTURE(ranks);
                CAPTURE(by_cells);
                CAPTURE(link.name);
                const std::vector<PlannedDevice> on(static_cast<size_t>(ranks),
                                                    {int64_t{80} << 30, bandwidth});
                const auto plan = plan_shared(
                    program, {.devices = on, .link = link, .format = Type::Q4_K, .filled = 10000}, split);
                REQUIRE(plan);
                // Only the embedding is whole on every device.
                const double own = (weights - table) / ranks + table;
                CHECK(static_cast<double>(plan->context) ==
                      doctest::Approx(ranks * (79 * kGiB - own) / cell).epsilon(0.01));
                // Gathered: a layer's queries, keys and values or its output; the residual twice, the hidden values; once the
                // embedding and the logits. Divided attention: the sums of 40 parts of the cells.
                const double values = by_cells ? 8192 + 2 * 1024 : 8192, parts = 40;
                double bytes = 80 * (values + 2 * 8192 + 28672) + 8192 + 128256, operations = 80 * 4 + 2;
                if (by_cells) bytes += 80 * parts * 64 * (128 + 2), operations += 80 * 3;
                const double others = static_cast<double>(ranks - 1) / ranks;
                const double read = (weights - table) / ranks + row + 10000 * cell / ranks;
                const double seconds =
                    read / bandwidth +
                    (ranks > 1 ? 4 * others * bytes / link.bandwidth + operations * link.latency : 0);
                CHECK(plan->predicted.value() == doctest::Approx(1 / seconds).epsilon(1e-3));
            }
    // The bandwidth of one device is unknown; the weights do not fit; there is nothing to divide.
    CHECK(!plan_shared(program, {.devices = devices({80, 80}), .format = Type::Q4_K}, decode::Split::Tensor)
               ->predicted);
    CHECK(plan_shared(program, {.devices = devices({16, 16}, 1e12), .format = Type::Q4_K},
                      decode::Split::Tensor)
              ->context == 0);
    CHECK(!plan_shared(program_of(parse_shape("layers=8,width=512,heads=8,ff=1376,vocab=8192,window=512")),
                       {.devices = devices({8, 8}, 1e12)}, decode::Split::Context));
}

TEST_CASE("device plan: windows bound what is read") {
    const auto speed = [](const char *shape, int64_t filled) {
        const DevicePlan plan =
            plan_devices(program_of(parse_shape(shape)),
                         {.devices = devices({8, 8}, 1e12), .context = 65536, .filled = filled});
        return plan.predicted.value_or(0);
    };
    const char *const windowed = "layers=8,width=512,heads=8,ff=1376,vocab=8192,window=512";
    CHECK(speed(windowed, 512) == speed(windowed, 60000));
    const char *const full = "layers=8,width=512,heads=8,ff=1376,vocab=8192";
    CHECK(speed(full, 512) > 2 * speed(full, 60000));
}

}  // namespace
}  // namespace runnel::measure
