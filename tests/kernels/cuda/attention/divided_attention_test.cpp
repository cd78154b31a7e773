// The kernels of attention to a cache that several devices divide, on one device. (On several: tests/kernels/divided_gpus_test.cpp)
#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "tests/kernels/cuda/attention/attention_problem.h"
#include "tests/simt/buffer.h"
#include "tests/simt/run_kernel.h"
#include "tests/simt/turing.h"
#include "tests/support/random.h"

using namespace runnel;
using namespace runnel::kernels::cuda;
using namespace runnel::tests;

namespace {

std::vector<Shape> held_shapes() {
    using enum CacheType;
    std::vector<Shape> shapes;
    shapes.push_back({attention(6, 2, 64, 64), {{530, 3}, {0, 1}, {1023, 6}}, {}});
    shapes.back().rope = rope_table(kernels::RopeTable::Pairs::Halves, 32);
    shapes.back().sinks = shapes.back().slopes = shapes.back().head_norm = true;
    shapes.push_back({attention(2, 2, 128, 96), {{700, 1}, {30, 2}}, {}});
    shapes.back().k_type = Q8_0, shapes.back().v_type = Q4_0, shapes.back().step.softcap = 3;
    shapes.push_back({attention(3, 1, 256, 256), {{520, 2, true}}, {}});
    return shapes;
}
std::vector<Shape> wide_held_shapes() {
    std::vector<Shape> shapes;
    shapes.push_back({attention(20, 1, 96, 64), {{600, 2}, {255, 1}}, {}});
    shapes.back().latent = true, shapes.back().k_type = CacheType::Q8_0;
    shapes.push_back({attention(2, 1, 288, 264), {{515, 1}}, {}});
    return shapes;
}

void check_held(const std::vector<Shape> &shapes) {
    uint64_t seed = 40;
    for (const Shape &shape : shapes) {
        CAPTURE(shape.step.head_dim_k);
        const Problem p = make_problem(shape, seed++);
        const Result expected = run(p, Way::Decode), held = run(p, Way::Held, 5);
        CHECK(same_bits(held.out, expected.out));
        CHECK(same_bits(held.k_cache, expected.k_cache));
        CHECK(same_bits(held.v_cache, expected.v_cache));
    }
}

}  // namespace

TEST_CASE("cuda attention: splits that are computed by two launches and joined have the bits of one launch") {
    check_held(held_shapes());
    check_held(wide_held_shapes());
}

TEST_CASE("cuda attention: splits that are computed apart and joined, on sm_75") {
    const simt::Turing turing;
    check_held(held_shapes());
}

TEST_CASE("cuda attention: pages are packed for other devices, and unpacked, as they are") {
    constexpr int32_t kPool = 7, kHeads = 3;
    testing::Random random(4);
    for (const auto &[k_page, v_page] : {std::pair{96, 2112}, {4096, 0}}) {
        CAPTURE(k_page);
        const auto bytes = [&](int32_t pages, int32_t size) {
            Bytes all(static_cast<size_t>(std::max(pages * size, 16)));
            for (unsigned char &byte : all) byte = static_cast<unsigned char>(random.below(256));
            return all;
        };
        const Bytes k = bytes(kPool * kHeads, k_page), v = bytes(kPool * kHeads, v_page);
        const std::vector<int32_t> blocks = {5, 0, 3};
        const auto count = static_cast<int32_t>(blocks.size());
        Stream stream;
        const simt::Buffer<unsigned char> k_from(stream, k, "K"), v_from(stream, v, "V"),
            k_to(stream, Bytes(k.size(), 0), "K copy"), v_to(stream, Bytes(v.size(), 0), "V copy"),
            packed(stream, Bytes(static_cast<size_t>(count * kHeads * (k_page + v_page)), 0), "packed");
        const simt::Buffer<int32_t> list(stream, blocks, "blocks");
        CopyPagesParams params{k_from.data(), v_from.data(), packed.data(), list.data(), k_page,
                               v_page,        count,         kHeads,        false};
        simt::run_kernel(stream, copy_pages_kernel(), {2, 0}, params);
        params.k = k_to.data(), params.v = v_to.data(), params.unpack = true;
        simt::run_kernel(stream, copy_pages_kernel(), {2, 0}, params);
        const Bytes k_copy = k_to.read(), v_copy = v_to.read(), all = packed.read();
        for (int32_t i = 0; i < count; ++i)
            for (int32_t head = 0; head < kHeads; ++head) {
                const int32_t page = blocks[static_cast<size_t>(i)] * kHeads + head;
                const auto same = [&](const Bytes &a, int32_t at, const Bytes &b, int32_t from,
                                      int32_t size) {
                    return std::equal(a.begin() + at, a.begin() + at + size, b.begin() + from);
                };
                const int32_t at = (head * count + i) * (k_page + v_page);
                CHECK(same(all, at, k, page * k_page, k_page));
                CHECK(same(all, at + k_page, v, page * v_page, v_page));
                CHECK(same(k_copy, page * k_page, k, page * k_page, k_page));
                CHECK(same(v_copy, page * v_page, v, page * v_page, v_page));
            }
    }
}
