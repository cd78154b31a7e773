// Places of experts in the emulator: who gets one, compared with a list in order of use; what is fetched; and programs whose
// experts are not all resident, compared bit for bit with the same programs when all are.
#include "kernels/cuda/experts/expert_places.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/kernels/cuda/sequence_runner.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests;
using simt::Buffer;

namespace {

// Experts in places, the least recently used first.
class PlaceList {
  public:
    explicit PlaceList(int32_t places) {
        for (int32_t i = 0; i < places; ++i) order_.push_back({i, -1});
    }
    // The round's experts and their places; removes them from `waiting`. chosen: how often the batch chose each expert.
    std::map<int32_t, int32_t> round(std::set<int32_t> &waiting, const std::map<int32_t, int> &chosen,
                                     int32_t most) {
        std::map<int32_t, int32_t> here;
        std::list<Place> used;
        for (auto place = order_.begin(); place != order_.end();) {
            const auto next = std::next(place);
            if (waiting.erase(place->expert) > 0) {
                here[place->expert] = place->number;
                used.splice(used.end(), order_, place);
            }
            place = next;
        }
        const auto times = [&](int32_t expert) { return chosen.contains(expert) ? chosen.at(expert) : 0; };
        for (; most > 0 && !waiting.empty() && !order_.empty(); --most) {
            const int32_t expert = *std::ranges::min_element(waiting, {}, times);
            const auto place =
                std::ranges::min_element(order_, {}, [&](const Place &one) { return times(one.expert); });
            waiting.erase(expert);
            place->expert = expert;
            here[expert] = place->number;
            used.splice(used.end(), order_, place);
            ++fetched;
        }
        // All of a round were used at the same time.
        used.sort([](const Place &a, const Place &b) { return a.number < b.number; });
        order_.splice(order_.end(), used);
        return here;
    }
    std::set<int32_t> experts() const {
        std::set<int32_t> all;
        for (const Place &place : order_) all.insert(place.expert);
        return all;
    }
    uint64_t fetched = 0;

  private:
    struct Place {
        int32_t number, expert;
    };
    std::list<Place> order_;
};

std::vector<int32_t> random_choice(int32_t tokens, int32_t used, int32_t experts, std::mt19937 &random) {
    std::vector<int32_t> chosen, all(static_cast<size_t>(experts));
    for (int32_t i = 0; i < experts; ++i) all[static_cast<size_t>(i)] = i;
    for (int32_t t = 0; t < tokens; ++t) {
        std::shuffle(all.begin(), all.end(), random);
        std::sort(all.begin(), all.begin() + used);
        chosen.insert(chosen.end(), all.begin(), all.begin() + used);
    }
    return chosen;
}

TinyShape mixture(gguf::Type type) {
    TinyShape shape;
    shape.width = 64, shape.feed_forward = 32, shape.type = type;
    shape.experts.count = 9;
    shape.experts.routing.used = 3;
    return shape;
}

kernels::Program with_resident(const TinyProgram &tiny, int32_t experts) {
    kernels::Program program = tiny.program();
    program.resident_experts = experts;
    return program;
}

}  // namespace

TEST_CASE(
    "cuda places: the least chosen and then the least recently used ones are given away, in as many rounds "
    "as expected") {
    const uint32_t seed = 20261128;
    std::mt19937 random(seed);
    CAPTURE(seed);
    Stream stream;
    int several_rounds = 0;
    for (int shape = 0; shape < 12; ++shape) {
        const int32_t experts = shape == 0 ? kMaxExperts : 2 + static_cast<int32_t>(random() % 90);
        const int32_t used =
            1 + static_cast<int32_t>(random() % static_cast<uint32_t>(std::min(experts, 12)));
        const int32_t places =
            shape == 0 ? 300
                       : used + static_cast<int32_t>(random() % static_cast<uint32_t>(experts - used + 1));
        CAPTURE(experts);
        CAPTURE(used);
        CAPTURE(places);
        const auto ints = [&](int32_t count, int32_t value) {
            return std::vector<int32_t>(static_cast<size_t>(count), value);
        };
        const Buffer<int32_t> place_of(stream, ints(experts, -1), "place_of"),
            expert_of(stream, ints(places, -1), "expert_of");
        const Buffer<uint64_t> used_at(stream, std::vector<uint64_t>(static_cast<size_t>(places)), "used_at");
        const Buffer<PlaceCounts> counts(stream, std::vector<PlaceCounts>(1), "counts");
        const Buffer<int32_t> done(stream, static_cast<size_t>(experts), "done"),
            here(stream, static_cast<size_t>(experts), "here"), count(stream, 1, "count");
        const Buffer<FetchedExpert> fetched(stream, static_cast<size_t>(places), "fetched");
        PlaceList expected(places);
        uint64_t chosen_experts = 0;
        for (int batch = 0; batch < 5; ++batch) {
            const int32_t tokens = batch % 2 == 0 ? 1 : 1 + static_cast<int32_t>(random() % 40);
            const std::vector<int32_t> chosen = random_choice(tokens, used, experts, random);
            const auto pairs = static_cast<int32_t>(chosen.size());
            const Buffer<int32_t> c(stream, chosen, "chosen");
            std::set<int32_t> waiting(chosen.begin(), chosen.end());
            std::map<int32_t, int> times;
            for (const int32_t expert : chosen) ++times[expert];
            chosen_experts += waiting.size();
            const int32_t rounds = expert_rounds(pairs, experts, places);
            for (int32_t round = 0; round < rounds; ++round) {
                CAPTURE(batch);
                CAPTURE(round);
                const uint64_t before = expected.fetched;
                const std::map<int32_t, int32_t> places_here =
                    expected.round(waiting, times, most_fetched(round, pairs, experts, places));
                simt::settings().seed = random();
                simt::run_kernel(
                    stream, place_experts_kernel(), {1, kPlaceExpertsShared},
                    {c.data(), pairs, experts, places, round, most_fetched(round, pairs, experts, places),
                     place_of.data(), expert_of.data(), used_at.data(), counts.data(), done.data(),
                     here.data(), fetched.data(), count.data()});
                const std::vector<int32_t> got = here.read();
                for (int32_t e = 0; e < experts; ++e) {
                    const auto place = places_here.find(e);
                    REQUIRE(got[static_cast<size_t>(e)] == (place == places_here.end() ? -1 : place->second));
                }
                const auto fetches = static_cast<size_t>(count.read()[0]);
                REQUIRE(fetches == expected.fetched - before);
                for (const FetchedExpert &one : fetched.read(0, fetches))
                    REQUIRE(places_here.at(one.expert) == one.place);
            }
            CHECK(waiting.empty());
            // After several rounds, places have mostly the experts that were chosen most often.
            if (rounds > 1 && pairs >= 4 * experts) {
                int held = 0, best = 0;
                for (const int32_t expert : expected.experts()) held += times[expert];
                std::vector<int> counts_of_all;
                for (const auto &[expert, count] : times) counts_of_all.push_back(count);
                std::ranges::sort(counts_of_all, std::greater{});
                counts_of_all.resize(std::min(counts_of_all.size(), static_cast<size_t>(places)));
                for (const int count : counts_of_all) best += count;
                CHECK(held >= 0.85 * best);
                ++several_rounds;
            }
        }
        CHECK(counts.read()[0].chosen == chosen_experts);
        CHECK(counts.read()[0].fetched == expected.fetched);
    }
    CHECK(several_rounds > 5);
    simt::settings().seed = 1;
}

TEST_CASE("cuda places: every fetched expert is copied once, in pieces of 16 or 4 bytes, from host memory") {
    Stream stream;
    std::mt19937 random(4);
    constexpr int64_t kSizes[] = {4096 * 16 + 48, 20};
    constexpr int32_t kExperts = 5, kHeld = 3;
    FetchExpertsParams params{};
    std::vector<std::vector<uint8_t>> contents;
    std::vector<PinnedMemory> host;
    std::vector<Buffer<uint8_t>> held;
    for (const int64_t size : kSizes) {
        const auto bytes = static_cast<size_t>(size);
        std::vector<uint8_t> &content = contents.emplace_back(bytes * kExperts);
        for (uint8_t &byte : content) byte = static_cast<uint8_t>(random());
        std::copy(content.begin(), content.end(), host.emplace_back(content.size()).as<uint8_t>());
        held.emplace_back(stream, std::vector<uint8_t>(bytes * kHeld), "places");
        params.part[params.parts++] = {host.back().data(), reinterpret_cast<std::byte *>(held.back().data()),
                                       size};
    }
    const std::vector<FetchedExpert> list = {{4, 0}, {1, 2}};
    const Buffer<FetchedExpert> fetched(stream, list, "fetched");
    const Buffer<int32_t> count(stream, std::vector<int32_t>{2}, "count");
    params.fetched = fetched.data(), params.fetched_count = count.data();
    simt::take_reports();
    simt::run_kernel(stream, fetch_experts_kernel(), {7, 0}, params);
    stream.wait();
    if (simt::emulated())
        CHECK(simt::take_reports().at(0).traffic.at("places").written == 2 * (kSizes[0] + kSizes[1]));
    for (size_t k = 0; k < std::size(kSizes); ++k) {
        const auto bytes = static_cast<size_t>(kSizes[k]);
        const std::vector<uint8_t> got = held[k].read();
        const auto part = [&](const std::vector<uint8_t> &all, size_t index) {
            return std::vector<uint8_t>(all.begin() + static_cast<std::ptrdiff_t>(index * bytes),
                                        all.begin() + static_cast<std::ptrdiff_t>((index + 1) * bytes));
        };
        CHECK(part(got, 0) == part(contents[k], 4));
        CHECK(part(got, 1) == std::vector<uint8_t>(bytes));
        CHECK(part(got, 2) == part(contents[k], 1));
    }
}

TEST_CASE("cuda places: logits have the bits of a program whose experts are all resident") {
    using Kind = kernels::Activation::Kind;
    struct Case {
        const char *name;
        TinyShape shape;
    };
    std::vector<Case> cases;
    const auto add = [&](const char *name, gguf::Type type, auto &&change) {
        cases.push_back({name, mixture(type)});
        change(cases.back().shape.experts);
    };
    add("fused, F16", gguf::Type::F16, [](TinyExperts &) {});
    add("merged, Q8_0", gguf::Type::Q8_0, [](TinyExperts &e) { e.merged = true; });
    add("biases, not fused, Q4_0", gguf::Type::Q4_0, [](TinyExperts &e) {
        e.biases = e.selection_bias = true;
        e.act = Kind::SiluClamped;
    });
    add("scales, F32", gguf::Type::F32, [](TinyExperts &e) { e.scales = e.in_scales = true; });
    add("weights on the input and a shared expert, Q5_1", gguf::Type::Q5_1,
        [](TinyExperts &e) { e.weights_on_input = e.shared = true; });
    for (const auto &[name, shape] : cases) {
        CAPTURE(name);
        const TinyProgram tiny(shape, 7);
        const std::vector<int32_t> tokens = random_tokens(26, shape.vocab, 11);
        const kernels::Program whole = with_resident(tiny, 0);
        Runner expected(make_cuda_backend(0), whole);
        const Logits2 all = expected.run(tokens, 26);
        for (const int32_t resident : {1, 7}) {  // 1: those that a token uses
            CAPTURE(resident);
            const kernels::Program some = with_resident(tiny, resident);
            Runner runner(make_cuda_backend(0), some);
            check_equal(all, runner.run(tokens, 26), "many tokens at a time");
            for (const size_t chunk : {1, 5}) {
                const auto first = std::span(tokens).first(2 * chunk + 4);
                check_equal({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first.size())},
                            runner.run(first, chunk), "few tokens at a time");
            }
            const kernels::ExpertTraffic traffic = runner.backend().expert_traffic();
            CHECK(traffic.fetched > 0);
            CHECK(traffic.fetched <= traffic.chosen);
        }
    }
}

TEST_CASE("cuda places: device memory holds the places, host memory all experts") {
    const TinyProgram tiny(mixture(gguf::Type::Q8_0), 3);
    const kernels::CacheConfig cache{{kBlocks}};
    const kernels::MemoryNeed whole = memory_need(with_resident(tiny, 0), cache, kMaxTokens);
    const kernels::MemoryNeed some = memory_need(with_resident(tiny, 4), cache, kMaxTokens);
    CHECK(whole.host == 0);
    // Two layers of 9 experts, of which 4 are resident.
    CHECK(some.host > 0);
    CHECK(some.host % (2 * 9) == 0);
    CHECK(whole.weights - some.weights == some.host / 9 * 5);
    CHECK(memory_need(with_resident(tiny, 9), cache, kMaxTokens).all() == whole.all());
    if (!simt::emulated()) return;
    simt::take_peak_memory();
    const kernels::Program program = with_resident(tiny, 4);
    Runner runner(make_cuda_backend(0), program);
    runner.run(random_tokens(5, program.vocab, 1), 5);
    CHECK(simt::take_peak_memory() <= some.all());
}
