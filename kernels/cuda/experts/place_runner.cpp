#include "kernels/cuda/experts/place_runner.h"

#include <algorithm>
#include <numeric>

namespace runnel::kernels::cuda {
namespace {

constexpr const char *kPlacesName = "places of experts";
constexpr int64_t kFetchPiece = 256 * 16;  // bytes that a block of fetch_experts copies at a time

template <class Do>
void for_each_placed(const Plan &plan, Do &&visit) {
    for (const Op &op : plan.ops)
        if (const auto *experts = std::get_if<ExpertsOp>(&op); experts != nullptr && experts->places > 0)
            visit(*experts);
}

// Bytes of the memory for one batch, which all operations use: PlaceExpertsParams::done and here, fetched and its count.
constexpr size_t kBatchBytes = 2 * kMaxExperts * sizeof(int32_t) + kMaxExperts * sizeof(FetchedExpert) + 4;

}  // namespace

size_t PlaceRunner::Mixture::expert_bytes() const {
    return std::accumulate(matrix_bytes.begin(), matrix_bytes.end(), size_t{0}) +
           std::accumulate(bias_bytes.begin(), bias_bytes.end(), size_t{0});
}

// A mixture without memory.
PlaceRunner::Mixture PlaceRunner::sizes(const Program &program, const ExpertsOp &op) {
    Mixture made{};
    made.biases = {op.step.gate_bias, op.step.up_bias, op.step.down_bias};
    made.matrices = {op.step.gate, op.step.up, op.step.down};
    for (size_t i = 0; i < made.matrices.size(); ++i) {
        if (made.matrices[i] != kNoWeight)
            made.matrix_bytes[i] = matrix_tile_bytes(program.weights[static_cast<size_t>(made.matrices[i])]);
        if (made.biases[i] != kNoWeight)
            made.bias_bytes[i] = program.weights[static_cast<size_t>(made.biases[i])].matrix_bytes();
    }
    return made;
}

size_t PlaceRunner::bytes(const Program &program, const Plan &plan) {
    size_t all = 0;
    for_each_placed(plan, [&](const ExpertsOp &op) {
        const auto places = static_cast<size_t>(op.places), experts = static_cast<size_t>(op.experts);
        const Mixture mixture = sizes(program, op);
        all +=
            sizeof(PlaceCounts) + experts * sizeof(int32_t) + places * (sizeof(int32_t) + sizeof(uint64_t));
        for (const size_t bias : mixture.bias_bytes) all += places * bias;
    });
    return all > 0 ? all + kBatchBytes : 0;
}

PlaceRunner::PlaceRunner(Stream &stream, const Program &program, const Plan &plan) {
    const auto memory = [&](size_t bytes, int byte) {
        DeviceMemory made(bytes, kPlacesName);
        stream.fill(made.data(), byte, bytes);
        return made;
    };
    constexpr int kZeros = 0, kNone = 0xff;  // of bytes: 0, or -1 as an int32_t
    for_each_placed(plan, [&](const ExpertsOp &op) {
        const auto places = static_cast<size_t>(op.places), experts = static_cast<size_t>(op.experts);
        Mixture &mixture = mixtures_.emplace_back(sizes(program, op));
        mixture.used_at = memory(places * sizeof(uint64_t), kZeros);
        mixture.counts = memory(sizeof(PlaceCounts), kZeros);
        mixture.place_of = memory(experts * sizeof(int32_t), kNone);
        mixture.expert_of = memory(places * sizeof(int32_t), kNone);
        for (size_t i = 0; i < kBiases; ++i)
            if (mixture.bias_bytes[i] > 0)
                mixture.placed_biases[i] = DeviceMemory(places * mixture.bias_bytes[i], kPlacesName);
    });
    if (mixtures_.empty()) return;
    done_ = DeviceMemory(kMaxExperts * sizeof(int32_t), kPlacesName);
    here_ = DeviceMemory(kMaxExperts * sizeof(int32_t), kPlacesName);
    fetched_ = DeviceMemory(kMaxExperts * sizeof(FetchedExpert), kPlacesName);
    fetched_count_ = DeviceMemory(sizeof(int32_t), kPlacesName);
    prepare(place_experts_kernel().handle, kPlaceExpertsShared);
    prepare(fetch_experts_kernel().handle, 0);
}

const int32_t *PlaceRunner::enqueue(Launcher &launcher, const ExpertsOp &op, const DeviceWeights &weights,
                                    const int32_t *chosen, int32_t pairs, int32_t round) {
    const Mixture &mixture = mixtures_[static_cast<size_t>(op.placed)];
    launcher.run_exactly(
        place_experts_kernel(), 1, kPlaceExpertsShared,
        {chosen, pairs, op.experts, op.places, round, most_fetched(round, pairs, op.experts, op.places),
         mixture.place_of.as<int32_t>(), mixture.expert_of.as<int32_t>(), mixture.used_at.as<uint64_t>(),
         mixture.counts.as<PlaceCounts>(), done_.as<int32_t>(), here_.as<int32_t>(),
         fetched_.as<FetchedExpert>(), fetched_count_.as<int32_t>()});
    FetchExpertsParams params{};
    params.fetched = fetched_.as<const FetchedExpert>();
    params.fetched_count = fetched_count_.as<const int32_t>();
    int64_t largest = 0;
    const auto add = [&](const std::byte *from, std::byte *to, size_t bytes) {
        params.part[params.parts++] = {from, to, static_cast<int64_t>(bytes)};
        largest = std::max(largest, static_cast<int64_t>(bytes));
    };
    for (size_t i = 0; i < mixture.matrices.size(); ++i) {
        const WeightId matrix = mixture.matrices[i], bias = mixture.biases[i];
        if (matrix != kNoWeight)
            add(weights.host_tiles(matrix), weights.places(matrix), mixture.matrix_bytes[i]);
        if (bias != kNoWeight)
            add(reinterpret_cast<const std::byte *>(weights.floats(bias)), mixture.placed_biases[i].data(),
                mixture.bias_bytes[i]);
    }
    launcher.run(fetch_experts_kernel(), (largest + kFetchPiece - 1) / kFetchPiece, 0, params);
    return here_.as<const int32_t>();
}

const float *PlaceRunner::bias(const ExpertsOp &op, WeightId id) const {
    if (id == kNoWeight) return nullptr;
    const Mixture &mixture = mixtures_[static_cast<size_t>(op.placed)];
    const auto at = std::ranges::find(mixture.biases, id) - mixture.biases.begin();
    return mixture.placed_biases[static_cast<size_t>(at)].as<const float>();
}

ExpertTraffic PlaceRunner::traffic(Stream &stream) const {
    ExpertTraffic all;
    for (const Mixture &mixture : mixtures_) {
        PlaceCounts counts{};
        stream.copy_to_host(&counts, mixture.counts.data(), sizeof counts);
        stream.wait();
        all += {counts.chosen, counts.fetched, counts.fetched * mixture.expert_bytes()};
    }
    return all;
}

}  // namespace runnel::kernels::cuda
