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

// NVFP4's scales are bytes, and quantizers never write half of their values.
void make_sound(gguf::Type type, std::vector<std::byte> &data) {
    if (type != gguf::Type::NVFP4) return;
    for (size_t block = 0; block < data.size(); block += 36)
        for (size_t i = 0; i < 4; ++i) {
            std::byte &d = data[block + i];
            d &= std::byte{0x7f};
            if (d == std::byte{0x7f}) d = std::byte{0x7e};
        }
}

template <class Bits>
std::vector<std::byte> bytes_of(const std::vector<Bits> &values) {
    std::vector<std::byte> bytes(values.size() * sizeof(Bits));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

// Which of these values, each a block of `type`, are reported when scanned one by one.
template <class Bits>
std::vector<size_t> reported(gguf::Type type, const std::vector<Bits> &values) {
    std::vector<size_t> found;
    for (size_t i = 0; i < values.size(); ++i)
        if (gguf::scan(type, bytes_of<Bits>({values[i]})).not_finite > 0) found.push_back(i);
    CHECK(gguf::scan(type, bytes_of(values)).not_finite == found.size());
    return found;
}

// Number of blocks that dequantize to a value that is not finite.
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
        auto data = tests::random_weights(type, 8, 1024, random);
        make_sound(type, data);
        const gguf::DataScan found = gguf::scan(type, data);
        CHECK(found.blocks == data.size() / gguf::traits(type).block_bytes);
        CHECK(found.not_finite == 0);
        CHECK(!found.first_broken);
        CHECK(found.zero_pages == 0);
        CHECK(found.pages == data.size() / gguf::kScanPage);
    }
}

TEST_CASE("scan: random bytes have blocks whose values are not finite") {
    std::mt19937 random(4);
    for (const gguf::Type type : all_types()) {
        if (type == gguf::Type::NVFP4) continue;  // has no infinity: tested below
        CAPTURE(gguf::traits(type).name);
        constexpr int64_t kBlocks = 512;
        std::vector<std::byte> data(kBlocks * gguf::traits(type).block_bytes);
        for (std::byte &b : data) b = static_cast<std::byte>(random());
        const gguf::DataScan found = gguf::scan(type, data);
        const uint64_t expected = not_finite(type, data, kBlocks);
        // An infinite scale times zero is NaN, except in MXFP4. A scale that no weight
        // uses counts as damage as well.
        CHECK(found.not_finite >= expected);
        CHECK(found.not_finite <= expected + 2);
        CHECK(found.first_broken.has_value() == (found.not_finite > 0));
    }
}

TEST_CASE("scan: NaN and infinity of either sign, and nothing else, in plain numbers") {
    // Zero, one, the largest number, infinity, the first and the last NaN; then all of them negative.
    const std::vector<size_t> expected = {3, 4, 5, 9, 10, 11};
    const auto both_signs = [](auto bits) {
        using Bits = typename decltype(bits)::value_type;
        const auto sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
        for (size_t i = 0; i < 6; ++i) bits.push_back(static_cast<Bits>(bits[i] | sign));
        return bits;
    };
    using W = std::vector<uint16_t>;
    CHECK(reported(gguf::Type::F64, both_signs(std::vector<uint64_t>{
                                        0, 0x3ff0000000000000, 0x7fefffffffffffff, 0x7ff0000000000000,
                                        0x7ff0000000000001, 0x7fffffffffffffff})) == expected);
    CHECK(reported(gguf::Type::F32, both_signs(std::vector<uint32_t>{0, 0x3f800000, 0x7f7fffff, 0x7f800000,
                                                                     0x7f800001, 0x7fffffff})) == expected);
    CHECK(reported(gguf::Type::F16, both_signs(W{0, 0x3c00, 0x7bff, 0x7c00, 0x7c01, 0x7fff})) == expected);
    CHECK(reported(gguf::Type::BF16, both_signs(W{0, 0x3f80, 0x7f7f, 0x7f80, 0x7f81, 0x7fff})) == expected);
}

TEST_CASE("scan: damaged scales are found in formats without kernels (Q8_1, Q8_K) and in NVFP4") {
    std::mt19937 random(6);
    const auto damaged = [&](gguf::Type type, size_t at, std::vector<uint8_t> bytes) {
        std::vector<std::byte> data(5 * gguf::traits(type).block_bytes, std::byte{1});
        const size_t block = random() % 5;
        std::memcpy(data.data() + block * gguf::traits(type).block_bytes + at, bytes.data(), bytes.size());
        const gguf::DataScan found = gguf::scan(type, data);
        CAPTURE(gguf::traits(type).name);
        CHECK(found.blocks == 5);
        if (found.first_broken) CHECK(*found.first_broken == block);
        return found.not_finite;
    };
    const std::vector<uint8_t> infinite16 = {0x00, 0xfc}, nan32 = {0x01, 0x00, 0x80, 0xff};
    CHECK(damaged(gguf::Type::Q8_1, 0, infinite16) == 1);
    CHECK(damaged(gguf::Type::Q8_1, 2, infinite16) == 1);
    CHECK(damaged(gguf::Type::Q8_1, 4, infinite16) == 0);  // in the weights
    CHECK(damaged(gguf::Type::Q8_K, 0, nan32) == 1);
    CHECK(damaged(gguf::Type::Q8_K, 8, nan32) == 0);
    for (size_t group = 0; group < 4; ++group) {
        CHECK(damaged(gguf::Type::NVFP4, group, {0x7f}) == 1);
        CHECK(damaged(gguf::Type::NVFP4, group, {0x80}) == 1);
        CHECK(damaged(gguf::Type::NVFP4, group, {0x7e}) == 0);
        CHECK(damaged(gguf::Type::NVFP4, group, {0x00}) == 0);
    }
    CHECK(damaged(gguf::Type::NVFP4, 4, {0xff}) == 0);  // in the weights
}

TEST_CASE("scan: every block and every page is checked, also in pieces") {
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
    CHECK(gguf::scan(type, data).zero_tail == 0);
    CHECK(gguf::scan(type, data).not_finite == 0);
}

TEST_CASE("scan: counts the zero pages at the end, also in pieces") {
    std::vector<std::byte> data(10 * gguf::kScanPage);
    const auto tail_of = [&](size_t piece) {
        gguf::DataScan found;
        for (size_t at = 0; at < data.size(); at += piece)
            found.add(gguf::scan(gguf::Type::F32, std::span(data).subspan(at, piece)));
        return found.zero_tail;
    };
    for (const size_t piece : {1, 2, 5, 10}) CHECK(tail_of(piece * gguf::kScanPage) == 10);
    data[6 * gguf::kScanPage + 5] = std::byte{1};  // the seventh page
    for (const size_t piece : {1, 2, 5, 10}) CHECK(tail_of(piece * gguf::kScanPage) == 3);
    data.back() = std::byte{1};
    for (const size_t piece : {1, 2, 5, 10}) CHECK(tail_of(piece * gguf::kScanPage) == 0);
}
