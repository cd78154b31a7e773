#include "gguf/block_grid.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <iterator>

#include "gguf/pack_levels.h"
#include "gguf/scales.h"

namespace runnel::gguf {
namespace {

// kSymmetric[i] = i - 127: the levels of every format without a table are a range of these.
constexpr std::array<int8_t, 255> kSymmetric = [] {
    std::array<int8_t, 255> levels{};
    for (int i = 0; i < 255; ++i) levels[static_cast<size_t>(i)] = static_cast<int8_t>(i - 127);
    return levels;
}();

std::span<const int8_t> range(int low, int high) {
    return std::span(kSymmetric).subspan(static_cast<size_t>(low + 127), static_cast<size_t>(high - low + 1));
}

std::span<const int8_t> levels_of(Type type) {
    switch (type) {
        case Type::Q4_0:
            return range(-8, 7);
        case Type::Q5_0:
            return range(-16, 15);
        case Type::Q8_0:
            return range(-127, 127);
        case Type::Q2_K:
            return range(0, 3);
        case Type::Q3_K:
            return range(-4, 3);
        case Type::Q4_1:
        case Type::Q4_K:
            return range(0, 15);
        case Type::Q5_1:
        case Type::Q5_K:
            return range(0, 31);
        case Type::Q6_K:
            return range(-32, 31);
        case Type::IQ4_NL:
        case Type::IQ4_XS:
            return kIQ4Values;
        default:
            return {};
    }
}

template <class Block>
Block read(const std::byte *bytes) {
    Block block;
    std::memcpy(&block, bytes, sizeof block);
    return block;
}

// Changes a copy of the block and writes it back.
template <class Block, class Change>
void change(std::byte *bytes, Change change_block) {
    Block block = read<Block>(bytes);
    change_block(block);
    std::memcpy(bytes, &block, sizeof block);
}

// One scale and one offset for all weights.
void fill(BlockGrid &grid, size_t weights, float step, float offset) {
    std::fill_n(grid.step.begin(), weights, step);
    std::fill_n(grid.offset.begin(), weights, offset);
}

// group(g) returns the step and the offset of one of `groups` equal groups of a super-block.
template <class Group>
void fill_groups(BlockGrid &grid, int groups, Group group) {
    const int size = kSuperBlock / groups;
    for (int g = 0; g < groups; ++g) {
        const auto [step, offset] = group(g);
        std::fill_n(grid.step.begin() + g * size, size, step);
        std::fill_n(grid.offset.begin() + g * size, size, offset);
    }
}

struct LevelLine {
    float step, offset;
};

template <class Block>
void fill_affine(BlockGrid &grid, const Block &block) {
    const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
    const ScalesAndMins s = unpack_scales_mins(block.scales);
    fill_groups(grid, 8, [&](int g) {
        return LevelLine{d * static_cast<float>(s.scales[g]), -(dmin * static_cast<float>(s.mins[g]))};
    });
}

}  // namespace

size_t BlockGrid::nearest(size_t weight, float x) const {
    const auto zero = static_cast<size_t>(std::ranges::lower_bound(levels, 0) - levels.begin());
    const float wanted = (x - offset[weight]) / step[weight];
    if (step[weight] == 0 || !std::isfinite(wanted)) return std::min(zero, levels.size() - 1);
    const int low = levels.front(), high = levels.back();
    if (static_cast<size_t>(high - low + 1) == levels.size()) {
        const float inside = std::clamp(wanted, static_cast<float>(low), static_cast<float>(high));
        return static_cast<size_t>(static_cast<int>(std::floor(inside + 0.5f)) - low);
    }
    const auto above =
        std::ranges::upper_bound(levels, wanted, {}, [](int8_t level) { return static_cast<float>(level); });
    if (above == levels.begin()) return 0;
    if (above == levels.end()) return levels.size() - 1;
    const auto below = std::prev(above);
    const bool is_below = wanted - static_cast<float>(*below) <= static_cast<float>(*above) - wanted;
    return static_cast<size_t>((is_below ? below : above) - levels.begin());
}

bool has_grid(Type type) noexcept {
    return !levels_of(type).empty();
}

BlockGrid grid_of(Type type, const std::byte *bytes) {
    assert(has_grid(type));
    BlockGrid grid{levels_of(type), {}, {}};
    switch (type) {
        case Type::Q4_0:
            fill(grid, 32, f16_to_f32(read<BlockQ4_0>(bytes).d), 0);
            break;
        case Type::Q4_1: {
            const auto block = read<BlockQ4_1>(bytes);
            fill(grid, 32, f16_to_f32(block.d), f16_to_f32(block.m));
            break;
        }
        case Type::Q5_0:
            fill(grid, 32, f16_to_f32(read<BlockQ5_0>(bytes).d), 0);
            break;
        case Type::Q5_1: {
            const auto block = read<BlockQ5_1>(bytes);
            fill(grid, 32, f16_to_f32(block.d), f16_to_f32(block.m));
            break;
        }
        case Type::Q8_0:
            fill(grid, 32, f16_to_f32(read<BlockQ8_0>(bytes).d), 0);
            break;
        case Type::Q2_K: {
            const auto block = read<BlockQ2_K>(bytes);
            const float d = f16_to_f32(block.d), dmin = f16_to_f32(block.dmin);
            fill_groups(grid, 16, [&](int g) {
                return LevelLine{d * static_cast<float>(block.scales[g] & 15),
                                 -(dmin * static_cast<float>(block.scales[g] >> 4))};
            });
            break;
        }
        case Type::Q3_K: {
            const auto block = read<BlockQ3_K>(bytes);
            const float d = f16_to_f32(block.d);
            fill_groups(grid, 16, [&](int g) {
                return LevelLine{d * static_cast<float>(q3_scale(block.scales, g) - 32), 0};
            });
            break;
        }
        case Type::Q4_K:
            fill_affine(grid, read<BlockQ4_K>(bytes));
            break;
        case Type::Q5_K:
            fill_affine(grid, read<BlockQ5_K>(bytes));
            break;
        case Type::Q6_K: {
            const auto block = read<BlockQ6_K>(bytes);
            const float d = f16_to_f32(block.d);
            fill_groups(grid, 16, [&](int g) {
                return LevelLine{d * static_cast<float>(block.scales[g]), 0};
            });
            break;
        }
        case Type::IQ4_NL:
            fill(grid, 32, f16_to_f32(read<BlockIQ4_NL>(bytes).d), 0);
            break;
        case Type::IQ4_XS: {
            const auto block = read<BlockIQ4_XS>(bytes);
            const float d = f16_to_f32(block.d);
            fill_groups(grid, 8, [&](int g) {
                const int low = block.scales_l[g / 2] >> (g % 2 * 4) & 15,
                          high = block.scales_h >> (2 * g) & 3;
                return LevelLine{d * static_cast<float>((low | high << 4) - 32), 0};
            });
            break;
        }
        default:
            break;
    }
    return grid;
}

void set_levels(Type type, std::span<const uint8_t> levels, std::byte *bytes) {
    assert(has_grid(type) && levels.size() == traits(type).block_size);
    const uint8_t *const from = levels.data();
    switch (type) {
        case Type::Q4_0:
            return change<BlockQ4_0>(bytes, [&](auto &block) { pack_nibbles(block.qs, from); });
        case Type::Q4_1:
            return change<BlockQ4_1>(bytes, [&](auto &block) { pack_nibbles(block.qs, from); });
        case Type::IQ4_NL:
            return change<BlockIQ4_NL>(bytes, [&](auto &block) { pack_nibbles(block.qs, from); });
        case Type::Q5_0:
            return change<BlockQ5_0>(bytes, [&](auto &block) {
                pack_nibbles(block.qs, from);
                pack_fifth_bits(block.qh, from);
            });
        case Type::Q5_1:
            return change<BlockQ5_1>(bytes, [&](auto &block) {
                pack_nibbles(block.qs, from);
                pack_fifth_bits(block.qh, from);
            });
        case Type::Q8_0:
            return change<BlockQ8_0>(bytes, [&](auto &block) {
                for (size_t i = 0; i < levels.size(); ++i) block.qs[i] = kSymmetric[levels[i]];
            });
        case Type::Q2_K:
            return change<BlockQ2_K>(bytes, [&](auto &block) { pack_pairs_of_bits(from, block.qs); });
        case Type::Q3_K:
            return change<BlockQ3_K>(bytes, [&](auto &block) {
                std::array<uint8_t, kSuperBlock> low;
                for (size_t i = 0; i < low.size(); ++i) low[i] = levels[i] & 3;
                pack_pairs_of_bits(low.data(), block.qs);
                pack_upper_bits(from, 2, block.hmask);
            });
        case Type::Q4_K:
            return change<BlockQ4_K>(bytes, [&](auto &block) { pack_64_nibbles(from, block.qs); });
        case Type::Q5_K:
            return change<BlockQ5_K>(bytes, [&](auto &block) {
                pack_64_nibbles(from, block.qs);
                pack_upper_bits(from, 4, block.qh);
            });
        case Type::Q6_K:
            return change<BlockQ6_K>(bytes, [&](auto &block) { pack_levels(from, block); });
        case Type::IQ4_XS:
            return change<BlockIQ4_XS>(bytes, [&](auto &block) {
                for (int g = 0; g < 8; ++g) pack_nibbles(block.qs + 16 * g, from + 32 * g);
            });
        default:
            return;
    }
}

}  // namespace runnel::gguf
