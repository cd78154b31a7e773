// Routing and grouping of rows in the emulator, compared with the CPU's routing and plain lists.
#include "kernels/cuda/experts/experts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/cpu/route.h"
#include "kernels/cuda/linear/linear_prefill.h"
#include "tests/kernels/cuda/linear/linear_support.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/simt.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests::device;
using kernels::Routing;

namespace {

template <class T>
std::vector<T> values_of(Stream &stream, const DeviceMemory &memory, size_t count) {
    std::vector<T> values(count);
    stream.copy_to_host(values.data(), memory.data(), count * sizeof(T));
    stream.wait();
    return values;
}

// Few different values, so that ties are frequent; sometimes values that cannot be compared (NaN).
std::vector<float> random_logits(size_t count, std::mt19937 &random) {
    std::vector<float> logits(count);
    for (float &l : logits) {
        l = static_cast<float>(static_cast<int>(random() % 41) - 20) / 4;
        if (random() % 50 == 0) l = -std::numeric_limits<float>::infinity();
    }
    return logits;
}

RouteScore on_device(Routing::Score score) {
    return score == Routing::Score::Softmax        ? RouteScore::Softmax
           : score == Routing::Score::Sigmoid      ? RouteScore::Sigmoid
           : score == Routing::Score::SparseMixer  ? RouteScore::SparseMixer
           : score == Routing::Score::SqrtSoftplus ? RouteScore::SqrtSoftplus
                                                   : RouteScore::SelectedSoftmax;
}

}  // namespace

TEST_CASE("cuda experts: routing equals the CPU's, with ties to the first expert and the same weights") {
    using Score = Routing::Score;
    Stream stream;
    const struct {
        int32_t experts;
        bool bias;
        Routing routing;
        bool given = false;
    } cases[] = {
        {8, false, {.used = 2}},
        {128, false, {.used = 8, .normalize = true}},
        {33, false, {.score = Score::SelectedSoftmax, .used = 4, .normalize = true}},
        {5, true, {.score = Score::Sigmoid, .used = 5, .scale = 0.5f}},
        {64,
         true,
         {.score = Score::Sigmoid,
          .used = 6,
          .groups = 8,
          .groups_used = 3,
          .normalize = true,
          .scale = 2.5f}},
        {16, false, {.score = Score::SparseMixer, .used = 2}},
        {21, true, {.score = Score::SqrtSoftplus, .used = 6, .normalize = true, .scale = 1.5f}},
        {24, false, {.score = Score::SqrtSoftplus, .used = 6, .normalize = true}, true},
        {160, false, {.used = 6, .groups = 40, .groups_used = 33, .group_best = 1}},
    };
    for (const auto &[experts, has_bias, routing, has_given] : cases) {
        CAPTURE(experts);
        std::mt19937 random(static_cast<uint32_t>(experts));
        constexpr int32_t kTokens = 19;
        const size_t all = static_cast<size_t>(experts), pairs = static_cast<size_t>(kTokens * routing.used);
        const std::vector<float> logits = random_logits(kTokens * all, random),
                                 bias = random_logits(has_bias ? all : 0, random);
        const DeviceMemory l = upload(stream, logits, "logits"),
                           b = upload(stream, bias, "bias", Region::Weights);
        // The experts of token t: t % 3, t % 3 + 3, ...
        std::vector<float> given;
        for (size_t i = 0; has_given && i < pairs; ++i) {
            const size_t used = pairs / kTokens;
            given.push_back(static_cast<float>(i / used % 3 + 3 * (i % used)));
        }
        const DeviceMemory g = upload(stream, given, "given experts");
        const DeviceMemory chosen(pairs * 4, "chosen"), weights(pairs * 4, "weights");
        simt::run_kernel(
            stream, route_kernel(), {(kTokens + kRouteTokens - 1) / kRouteTokens, kRouteShared},
            {l.as<const float>(), experts, has_bias ? b.as<const float>() : nullptr, nullptr, kTokens,
             experts, routing.used, routing.groups, routing.groups_used, routing.group_best,
             on_device(routing.score), routing.normalize, routing.scale, chosen.as<int32_t>(),
             weights.as<float>(), has_given ? g.as<const float>() : nullptr, routing.used});
        const auto e = values_of<int32_t>(stream, chosen, pairs);
        const auto w = values_of<float>(stream, weights, pairs);
        std::vector<float> scratch(kernels::cpu::route_scratch(experts));
        for (size_t t = 0; t < kTokens; ++t) {
            CAPTURE(t);
            std::vector<int32_t> expected(static_cast<size_t>(routing.used));
            std::vector<float> expected_weights(expected.size());
            kernels::cpu::route(routing, std::span(logits).subspan(t * all, all),
                                has_bias ? bias.data() : nullptr, kernels::cpu::vector_scalar(),
                                scratch.data(), expected.data(), expected_weights.data(),
                                has_given ? given.data() + t * expected.size() : nullptr);
            for (size_t i = 0; i < expected.size(); ++i) {
                CHECK(e[t * expected.size() + i] == expected[i]);
                CHECK(w[t * expected.size() + i] == doctest::Approx(expected_weights[i]).epsilon(1e-6));
            }
        }
    }
}

TEST_CASE("cuda experts: rows are sorted by expert and token, in groups of both sizes") {
    Stream stream;
    std::mt19937 random(3);
    const struct {
        int32_t tokens, used, experts;
    } cases[] = {{1, 2, 4}, {7, 3, 40}, {150, 4, 9}, {300, 1, 2}};
    for (const auto &[tokens, used, experts] : cases) {
        CAPTURE(tokens);
        const int32_t pairs = tokens * used;
        std::vector<int32_t> chosen;
        for (int32_t t = 0; t < tokens; ++t) {
            std::vector<int32_t> all(static_cast<size_t>(experts));
            for (int32_t i = 0; i < experts; ++i) all[static_cast<size_t>(i)] = i;
            std::shuffle(all.begin(), all.end(), random);
            std::sort(all.begin(), all.begin() + used);
            chosen.insert(chosen.end(), all.begin(), all.begin() + used);
        }
        const std::vector<float> weights = random_activations(pairs, random);
        const DeviceMemory c = upload(stream, chosen, "chosen"), w = upload(stream, weights, "weights");
        const std::vector<float> scales = random_activations(experts, random);  // of up; gate has none
        const DeviceMemory of_up = upload(stream, scales, "scales");
        const bool weighted = tokens != 7;
        const int32_t few_rows = tokens == 150 ? kSmallGroupTokens : kLinearGroupTokens;
        const size_t bytes = static_cast<size_t>(pairs) * 4;
        const DeviceMemory sources(bytes, "sources"), gate_weights(bytes, "gate weights"),
            up_weights(bytes, "up weights"), rows(bytes, "rows"),
            few(static_cast<size_t>(pairs) * sizeof(TokenGroup), "few"),
            many(static_cast<size_t>(pairs) * sizeof(TokenGroup), "many"), counts(8, "counts");
        simt::run_kernel(stream, group_rows_kernel(), {static_cast<uint32_t>(experts), kGroupRowsShared},
                         {c.as<const int32_t>(),
                          weighted ? w.as<const float>() : nullptr,
                          {nullptr, of_up.as<const float>()},
                          pairs,
                          used,
                          experts,
                          sources.as<int32_t>(),
                          {gate_weights.as<float>(), up_weights.as<float>()},
                          rows.as<int32_t>(),
                          few.as<TokenGroup>(),
                          many.as<TokenGroup>(),
                          counts.as<int32_t>(),
                          counts.as<int32_t>() + 1,
                          few_rows});
        const auto source = values_of<int32_t>(stream, sources, static_cast<size_t>(pairs)),
                   row = values_of<int32_t>(stream, rows, static_cast<size_t>(pairs));
        const auto gate = values_of<float>(stream, gate_weights, static_cast<size_t>(pairs)),
                   up = values_of<float>(stream, up_weights, static_cast<size_t>(pairs));
        const auto count = values_of<int32_t>(stream, counts, 2);
        size_t next = 0;
        std::vector<TokenGroup> expected[2];
        for (int32_t e = 0; e < experts; ++e) {
            const auto first = static_cast<int32_t>(next);
            for (size_t pair = 0; pair < chosen.size(); ++pair) {
                if (chosen[pair] != e) continue;
                CHECK(source[next] == static_cast<int32_t>(pair) / used);
                const float weight = weighted ? weights[pair] : 1;
                CHECK(gate[next] == weight);
                CHECK(up[next] == weight * scales[static_cast<size_t>(e)]);
                CHECK(row[pair] == static_cast<int32_t>(next++));
            }
            for (const int which : {0, 1}) {
                const int32_t size = which == 0 ? few_rows : kPrefillTokens;
                for (int32_t at = first; at < static_cast<int32_t>(next); at += size)
                    expected[which].push_back({e, at, std::min(size, static_cast<int32_t>(next) - at)});
            }
        }
        for (const int which : {0, 1}) {
            CAPTURE(which);
            REQUIRE(count[static_cast<size_t>(which)] == static_cast<int32_t>(expected[which].size()));
            const auto groups =
                values_of<TokenGroup>(stream, which == 0 ? few : many, expected[which].size());
            for (size_t i = 0; i < groups.size(); ++i) {
                CHECK(groups[i].expert == expected[which][i].expert);
                CHECK(groups[i].first == expected[which][i].first);
                CHECK(groups[i].count == expected[which][i].count);
            }
        }
    }
}

namespace {

// Few tokens, routed and grouped: by one launch, or by two.
struct FewTokens {
    int32_t tokens, experts, used, few_rows;
    std::vector<float> up_scales;

    FewTokens(int32_t some, int32_t all, int32_t chosen, std::mt19937 &random)
        : tokens(some),
          experts(all),
          used(chosen),
          few_rows(random() % 2 == 0 ? kSmallGroupTokens : kLinearGroupTokens),
          up_scales(random_activations(all, random)) {}

    struct Results {
        std::vector<int32_t> chosen, sources, rows, groups, count;
        std::vector<float> weights, gate, up;
        bool operator==(const Results &) const = default;
    };
    enum class Way { TwoLaunches, OneLaunch };

    // router: computes the logits in that launch, by so many blocks.
    Results run(Stream &stream, const DeviceMemory &logits, Way way, const RouterMatrix &router = {}) const {
        const auto pairs = static_cast<size_t>(tokens * used);
        const DeviceMemory scales = upload(stream, up_scales, "scales"), chosen(pairs * 4, "chosen"),
                           weights(pairs * 4, "weights"), sources(pairs * 4, "sources"),
                           rows(pairs * 4, "rows"), gate(pairs * 4, "gate weights"),
                           up(pairs * 4, "up weights"), few(pairs * sizeof(TokenGroup), "few"),
                           many(pairs * sizeof(TokenGroup), "many"), counts(8, "counts");
        const RouteParams route{logits.as<const float>(),
                                experts,
                                nullptr,
                                nullptr,
                                tokens,
                                experts,
                                used,
                                1,
                                1,
                                1,
                                RouteScore::Softmax,
                                true,
                                0.5f,
                                chosen.as<int32_t>(),
                                weights.as<float>()};
        const GroupRowsParams groups{chosen.as<const int32_t>(),
                                     weights.as<const float>(),
                                     {nullptr, scales.as<const float>()},
                                     static_cast<int32_t>(pairs),
                                     used,
                                     experts,
                                     sources.as<int32_t>(),
                                     {gate.as<float>(), up.as<float>()},
                                     rows.as<int32_t>(),
                                     few.as<TokenGroup>(),
                                     many.as<TokenGroup>(),
                                     counts.as<int32_t>(),
                                     counts.as<int32_t>() + 1,
                                     few_rows};
        if (way == Way::OneLaunch) {
            const int64_t blocks = router.tiles == nullptr ? 1 : router_blocks(experts);
            simt::run_kernel(stream, route_groups_kernel(),
                             {static_cast<uint32_t>(blocks), kRouteGroupsShared}, {route, groups, router});
        } else {
            simt::run_kernel(stream, route_kernel(), {1, kRouteShared}, route);
            simt::run_kernel(stream, group_rows_kernel(), {static_cast<uint32_t>(experts), kGroupRowsShared},
                             groups);
        }
        Results made;
        made.count = values_of<int32_t>(stream, counts, 1);
        made.chosen = values_of<int32_t>(stream, chosen, pairs);
        made.sources = values_of<int32_t>(stream, sources, pairs);
        made.rows = values_of<int32_t>(stream, rows, pairs);
        made.groups = values_of<int32_t>(stream, few, 3 * static_cast<size_t>(made.count[0]));
        made.weights = values_of<float>(stream, weights, pairs);
        made.gate = values_of<float>(stream, gate, pairs);
        made.up = values_of<float>(stream, up, pairs);
        return made;
    }
};

int32_t up_to(int32_t most, std::mt19937 &random) {
    return 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(most));
}

}  // namespace

TEST_CASE("cuda experts: one launch routes few tokens and groups their rows as two launches do") {
    const uint32_t seed = 17;
    CAPTURE(seed);
    std::mt19937 random(seed);
    Stream stream;
    for (int i = 0; i < 10; ++i) {
        const int32_t tokens = i == 0 ? kRouteTokens : up_to(kRouteTokens, random);
        const int32_t experts = i == 0 ? kMaxExperts : 1 + up_to(60, random);
        const int32_t used = i == 0 ? kMaxUsedExperts : up_to(std::min(experts, 9), random);
        CAPTURE(tokens);
        CAPTURE(experts);
        CAPTURE(used);
        const FewTokens few(tokens, experts, used, random);
        const DeviceMemory logits =
            upload(stream, random_logits(static_cast<size_t>(tokens * experts), random), "logits");
        const auto expected = few.run(stream, logits, FewTokens::Way::TwoLaunches);
        CHECK(expected.count[0] > 0);
        CHECK(few.run(stream, logits, FewTokens::Way::OneLaunch) == expected);
    }
}

TEST_CASE("cuda experts: the launch that routes computes the router's logits as the matrix kernel does") {
    const uint32_t seed = 23;
    CAPTURE(seed);
    std::mt19937 random(seed);
    Stream stream;
    // Columns: ranges of different lengths, of several rounds, with less than a step in the last one; fewer than 8 ranges.
    const int64_t widths[] = {2048, 4096, 2312, 64, 36, 300, 768, 1288, 7168};
    for (const int64_t cols : widths) {
        const int32_t tokens = cols == 4096 ? kRouteTokens : up_to(kRouteTokens, random);
        const int32_t experts = cols == 2048 ? 128 : 1 + up_to(60, random);
        const int32_t used = up_to(std::min(experts, 9), random);
        CAPTURE(cols);
        CAPTURE(tokens);
        CAPTURE(experts);
        const Matrix matrix(stream, gguf::Type::F32, experts, cols, random);
        const Input input(stream, random_activations(tokens * cols, random), cols, tokens);
        const DeviceMemory bias = upload(stream, random_activations(experts, random), "bias");
        const std::vector<float> empty(static_cast<size_t>(tokens * experts), NAN);
        const DeviceMemory expected = upload(stream, empty, "expected"),
                           logits = upload(stream, empty, "logits"),
                           arrivals = upload(stream, std::vector<uint32_t>{0, 0}, "arrivals");
        const bool biased = cols % 3 != 0;
        LinearParams p = params_for(input, tokens);
        p.matrices = 1;
        p.matrix[0].tiles = matrix.tiles.data();
        p.matrix[0].bias = biased ? bias.as<const float>() : nullptr;
        p.matrix[0].out = expected.as<float>();
        p.matrix[0].out_stride = p.matrix[0].rows = experts;
        p.matrix[0].scale = biased ? 0.75f : 1.0f;
        const LinearVersion version{.tokens = tokens};
        simt::run_kernel(stream, linear_kernel(TileFormat::F32, version),
                         {3, linear_shared(TileFormat::F32, version, p)}, p);

        const FewTokens few(tokens, experts, used, random);
        const auto routed = few.run(stream, expected, FewTokens::Way::OneLaunch);
        for (const uint64_t order : {1, 2, 3}) {
            CAPTURE(order);
            simt::settings().seed = order;
            const RouterMatrix router{
                p.matrix[0].tiles,  p.matrix[0].bias,       p.x_f32, p.x_stride, p.cols, p.matrix[0].scale,
                logits.as<float>(), arrivals.as<uint32_t>()};
            CHECK(few.run(stream, logits, FewTokens::Way::OneLaunch, router) == routed);
            CHECK(different(download(stream, logits), download(stream, expected)) == 0);
            CHECK(values_of<uint32_t>(stream, arrivals, 2) == std::vector<uint32_t>{0, 0});
            stream.copy_to_device(logits.data(), empty.data(), empty.size() * sizeof(float));
            stream.wait();
        }
        simt::settings() = {};
    }
}

TEST_CASE("cuda experts: the router's launch prepares its input as a launch of its own does") {
    const uint32_t seed = 31;
    CAPTURE(seed);
    std::mt19937 random(seed);
    Stream stream;
    const struct {
        int64_t cols;
        int32_t experts;
        ActivationForms forms;
    } cases[] = {{2048, 128, {true, false}},
                 {608, 7, {true, true}},
                 {4384, 33, {true, false}},
                 {8192, 20, {false, true}}};
    for (const auto &[cols, experts, forms] : cases) {
        CAPTURE(cols);
        const Matrix matrix(stream, gguf::Type::F32, experts, cols, random);
        const Input input(stream, random_activations(cols, random), cols, 1);
        const DeviceMemory norm = upload(stream, random_activations(cols, random), "norm", Region::Weights),
                           arrivals = upload(stream, std::vector<uint32_t>(1), "arrivals");
        const std::vector<unsigned char> zeros(static_cast<size_t>(activation_bytes(cols, 1, forms)) + 16, 0);
        const std::vector<float> empty(static_cast<size_t>(input.stride), NAN);
        const FewTokens few(1, experts, std::min(experts, 6), random);
        const auto run = [&](bool at_once) {
            const DeviceMemory packed = upload(stream, zeros, "prepared"),
                               normed = upload(stream, empty, "normed"),
                               logits = upload(stream, std::vector<float>(static_cast<size_t>(experts), NAN),
                                               "logits");
            const QuantizeParams prepare{input.plain.as<const float>(),
                                         norm.as<const float>(),
                                         normed.as<float>(),
                                         1e-6f,
                                         static_cast<int32_t>(cols),
                                         input.stride,
                                         place_activations(packed.data(), cols, 1, forms)};
            RouterMatrix router{
                matrix.tiles.data(),        nullptr, normed.as<const float>(), input.stride,
                static_cast<int32_t>(cols), 1,       logits.as<float>(),       arrivals.as<uint32_t>()};
            if (at_once)
                router.prepare_input = prepare, router.x = nullptr;
            else
                simt::run_kernel(stream, quantize_kernel(), {1, kQuantizeShared}, prepare);
            const auto routed = few.run(stream, logits, FewTokens::Way::OneLaunch, router);
            return std::tuple(routed, download(stream, logits), download(stream, normed),
                              values_of<unsigned char>(stream, packed, zeros.size()));
        };
        const auto expected = run(false);
        for (const uint64_t order : {1, 2, 3}) {
            CAPTURE(order);
            simt::settings().seed = order;
            const auto made = run(true);
            CHECK(std::get<0>(made) == std::get<0>(expected));
            CHECK(different(std::get<1>(made), std::get<1>(expected)) == 0);
            CHECK(different(std::get<2>(made), std::get<2>(expected)) == 0);
            CHECK(std::get<3>(made) == std::get<3>(expected));
            CHECK(values_of<uint32_t>(stream, arrivals, 1) == std::vector<uint32_t>{0});
        }
        simt::settings() = {};
    }
}

TEST_CASE("cuda experts: the launch of the sum prepares its rows as a launch of its own does") {
    const uint32_t seed = 29;
    CAPTURE(seed);
    std::mt19937 random(seed);
    Stream stream;
    const struct {
        int32_t tokens, used, width;
        ActivationForms forms;
        bool norm, weights, add;
    } cases[] = {
        {1, 8, 2048, {true, false}, true, true, true},   {5, 3, 608, {true, true}, true, true, false},
        {16, 1, 256, {true, false}, false, false, true}, {3, 32, 96, {false, true}, true, true, true},
        {2, 11, 4384, {true, false}, true, true, true},  {2, 4, 100, {}, true, true, true}};
    for (const auto &[tokens, used, width, forms, norm, has_weights, has_add] : cases) {
        CAPTURE(width);
        const auto pairs = static_cast<size_t>(tokens * used), all = static_cast<size_t>(tokens * width);
        std::vector<int32_t> order(pairs);
        for (size_t i = 0; i < pairs; ++i) order[i] = static_cast<int32_t>(i);
        std::shuffle(order.begin(), order.end(), random);
        const std::vector<float> add = random_activations(tokens * width, random), empty(all, NAN);
        const std::vector<unsigned char> zeros(
            static_cast<size_t>(activation_bytes(width, tokens, forms)) + 16, 0);
        const std::vector<float> y = random_activations(static_cast<int64_t>(pairs) * width, random);
        const std::vector<float> weights = random_activations(static_cast<int64_t>(pairs), random);
        const DeviceMemory outputs = upload(stream, y, "outputs"), rows = upload(stream, order, "rows"),
                           factors = upload(stream, weights, "factors"),
                           gain = upload(stream, random_activations(width, random), "norm", Region::Weights),
                           arrivals = upload(stream, std::vector<uint32_t>(17), "arrivals");
        struct Made {
            std::vector<float> out, normed;
            std::vector<unsigned char> packed;
        };
        const auto run = [&](uint32_t blocks, bool at_once) {
            const DeviceMemory out = upload(stream, has_add ? add : empty, "out"),
                               normed = upload(stream, empty, "normed"),
                               packed = upload(stream, zeros, "prepared");
            CombineParams p{outputs.as<const float>(),
                            rows.as<const int32_t>(),
                            has_weights ? factors.as<const float>() : nullptr,
                            has_add ? out.as<const float>() : nullptr,
                            out.as<float>(),
                            width,
                            width,
                            width,
                            tokens,
                            used,
                            width};
            const QuantizeParams quantize{out.as<const float>(),
                                          norm ? gain.as<const float>() : nullptr,
                                          norm ? normed.as<float>() : nullptr,
                                          1e-5f,
                                          width,
                                          width,
                                          place_activations(packed.data(), width, tokens, forms)};
            if (at_once) p.prepare = quantize, p.arrivals = arrivals.as<uint32_t>();
            simt::run_kernel(stream, combine_kernel(), {blocks, kCombineShared}, p);
            if (!at_once)
                simt::run_kernel(stream, quantize_kernel(), {static_cast<uint32_t>(tokens), kQuantizeShared},
                                 quantize);
            return Made{download(stream, out), download(stream, normed),
                        values_of<unsigned char>(stream, packed, zeros.size())};
        };
        const Made expected = run(2, false);
        for (int32_t t = 0; t < tokens; ++t)
            for (int32_t col = 0; col < width; col += 7) {
                const auto at = static_cast<size_t>(t * width + col);
                float sum = has_add ? add[at] : 0.0f;
                for (size_t pair = static_cast<size_t>(t * used); pair < static_cast<size_t>((t + 1) * used);
                     ++pair)
                    sum = std::fma(has_weights ? weights[pair] : 1.0f,
                                   y[static_cast<size_t>(order[pair] * width + col)], sum);
                REQUIRE(expected.out[at] == sum);
            }
        for (const uint32_t blocks : {1u, 3u, static_cast<uint32_t>(combine_blocks(tokens, width))}) {
            CAPTURE(blocks);
            simt::settings().seed = blocks;
            const Made made = run(blocks, true);
            CHECK(different(made.out, expected.out) == 0);
            CHECK((!norm || different(made.normed, expected.normed) == 0));
            CHECK(made.packed == expected.packed);
            CHECK(values_of<uint32_t>(stream, arrivals, 17) == std::vector<uint32_t>(17));
        }
        simt::settings() = {};
    }
}
