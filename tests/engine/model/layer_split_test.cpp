// Every family, with its layers split over several CPU backends, gives the bits of one backend.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "engine/model/layers.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/split_backend.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/support/cache_types.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::kernels;

TEST_CASE("layer split: every family on two to eight CPU backends gives the bits of one, with roll-backs") {
    std::mt19937 random(3);
    size_t families = 0;
    for (const testing::FamilyFiles &family : testing::family_files()) {
        CAPTURE(family.name);
        testing::ModelShape shape;
        shape.arch = family.name, shape.type = "Q8_0", shape.layers = 8, shape.threads = 1;
        const testing::TemporaryModel tiny(shape);
        const model::Model model = model::build(tiny.file);
        const tests::RecurrentTexts texts(model.program, tests::random_texts({40, 9}, 260, random));
        CacheConfig cache = texts.cache();
        cache.k = runnel::testing::kCacheTypes[random() % 10],
        cache.v = runnel::testing::kCacheTypes[random() % 10];
        const auto one = cpu::make_cpu_backend(1);
        one->load(model.program, cache, texts.max_tokens());
        const auto expected = texts.run(*one, nullptr);
        const uint32_t devices = 2 + static_cast<uint32_t>(families++ % 7);
        CAPTURE(devices);
        std::vector<std::unique_ptr<Backend>> backends;
        for (uint32_t i = 0; i < devices; ++i) backends.push_back(cpu::make_cpu_backend(1 + i % 2));
        constexpr int32_t kPartTokens = 4;  // batches are cut, so that the devices work at the same time
        const auto split = make_split_backend(
            std::move(backends),
            [&](const Program &program) {
                const model::Layers layers = model::layers_of(program);
                std::vector<uint8_t> device;
                for (const int32_t layer : layers.of_step)
                    device.push_back(
                        static_cast<uint8_t>(static_cast<uint32_t>(std::max(layer, 0)) * devices /
                                             (static_cast<uint32_t>(layers.count) + 1)));
                return device;
            },
            {}, kPartTokens);
        split->load(model.program, cache, texts.max_tokens());
        tests::check_same(texts.run(*split, &random), expected);
    }
    CHECK(families >= 40);
}
