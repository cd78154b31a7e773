// Every family, cut by rows over several CPU backends, gives the bits of one backend.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/tensor_backend.h"
#include "tests/kernels/recurrent_texts.h"
#include "tests/support/cache_types.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using namespace runnel::kernels;

TEST_CASE("tensor split: every family on two to eight CPU backends gives the bits of one, with roll-backs") {
    std::mt19937 random(4);
    uint32_t families = 0;
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
        const uint32_t ranks = 2 + families++ % 7;
        CAPTURE(ranks);
        std::vector<std::unique_ptr<Backend>> backends;
        std::vector<double> shares;
        for (uint32_t i = 0; i < ranks; ++i) {
            backends.push_back(cpu::make_cpu_backend(1));
            shares.push_back(1 + static_cast<double>(random() % 3));
        }
        const auto split = make_tensor_backend(std::move(backends), shares);
        split->load(model.program, cache, texts.max_tokens());
        tests::check_same(texts.run(*split, &random), expected);
    }
    CHECK(families >= 40);
}
