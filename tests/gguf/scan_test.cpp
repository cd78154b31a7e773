// Damage in tensor data is found where it is, and only there.
#include "gguf/scan.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gguf/quantize.h"
#include "tests/kernels/cpu/random_blocks.h"

using namespace runnel;

namespace {

std::vector<gguf::Type> all_types() {
    std::vector<gguf::Type> types(std::begin(tests::kLinearTypes), std::end(tests::kLinearTypes));
    return types;
}

// Blocks of which dequantisation makes something that is no number.
uint64_t not_finite(gguf::Type type, const std::vector<std::byte> &data, int64_t blocks) {
    const auto size = static_cast<int64_t>(gguf::traits(type).block_size);
    std::vector<float> values(static_cast<size_t>(size));
    uint64_t count = 0;
    for (int64_t b = 0; b < blocks; ++b) {
        gguf::dequantize_row(type, data.data() + b * gguf::traits(type).block_bytes, values.data(), size);
        bool broken = false;
        for (const float v : values) broken |= !std::isfinite(v);
        count += broken;
    }
    return count;
}

}  // namespace

TEST_CASE("scan: sound weights of every format have nothing to report") {
    std::mt19937 random(3);
    for (const gguf::Type type : all_types()) {
        CAPTURE(gguf::traits(type).name);
        const auto data = tests::random_weights(type, 8, 1024, random);
        const gguf::DataScan found = gguf::scan(type, data);
        CHECK(found.blocks == data.size() / gguf::traits(type).block_bytes);
        CHECK(found.not_finite == 0);
        CHECK(!found.first_broken);
        CHECK(found.zero_pages == 0);
        CHECK(found.pages == data.size() / gguf::kScanPage);
    }
}

TEST_CASE("scan: of random bytes, blocks whose values are no numbers") {
    std::mt19937 random(4);
    for (const gguf::Type type : all_types()) {
        CAPTURE(gguf::traits(type).name);
        constexpr int64_t kBlocks = 512;
        std::vector<std::byte> data(kBlocks * gguf::traits(type).block_bytes);
        for (std::byte &b : data) b = static_cast<std::byte>(random());
        const gguf::DataScan found = gguf::scan(type, data);
        const uint64_t expected = not_finite(type, data, kBlocks);
        // A scale that is infinite may be multiplied by nothing but zeros, which makes NaN; one of MXFP4 may
        // not. Infinities in a scale that no weight of the block uses are damage all the same.
        CHECK(found.not_finite >= expected);
        CHECK(found.not_finite <= expected + 2);
        CHECK(found.first_broken.has_value() == (found.not_finite > 0));
    }
}

TEST_CASE("scan: every block and every page is looked at, in pieces, too") {
    std::mt19937 random(5);
    const gguf::Type type = gguf::Type::Q4_K;
    const size_t size = gguf::traits(type).block_bytes;
    for (const size_t broken : {size_t{0}, size_t{7}, size_t{299}}) {
        CAPTURE(broken);
        auto data = tests::random_weights(type, 300, 256, random);
        const uint16_t nan = 0x7e01;
        std::memcpy(data.data() + broken * size + 2, &nan, 2);
        const gguf::DataScan whole = gguf::scan(type, data);
        CHECK(whole.not_finite == 1);
        REQUIRE(whole.first_broken);
        CHECK(*whole.first_broken == broken);
        gguf::DataScan pieces;
        for (size_t at = 0; at < data.size(); at += 100 * size)
            pieces.add(gguf::scan(type, std::span(data).subspan(at, 100 * size)));
        CHECK(pieces.blocks == 300);
        REQUIRE(pieces.first_broken);
        CHECK(*pieces.first_broken == broken);
    }
    auto data = tests::random_weights(type, 300, 256, random);
    std::fill_n(data.begin() + 8192, 4096, std::byte{0});
    CHECK(gguf::scan(type, data).zero_pages == 1);
    CHECK(gguf::scan(type, data).not_finite == 0);
}
