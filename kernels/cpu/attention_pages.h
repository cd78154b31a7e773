// Pages of K and V as attention's products read them: in place, or converted to float32.
//
// The layouts are those of attention_formats.h. Both ways read the same number (exact in float32, or a sum that is
// rounded once). Reading in place costs, per vector of values, one conversion (f16, bf16), two instructions (q8_0: also
// a product) or a handful (q4_0, fp8). Memory delivers one vector of f16 about every ten cycles, so fewer bits
// take less time once the KV cache no longer fits in the CPU's caches. f32 is read in place as a converted page is. The
// other types are always converted: the products are compiled for every form and number of rows, a conversion once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/backend.h"
#include "kernels/cpu/attention_formats.h"

namespace runnel::kernels::cpu {
namespace {

// The forms: a cache type as it is stored, or float32.
template <CacheType type>
struct Stored {
    static constexpr CacheType kType = type;
    static constexpr bool kScaled = has_scales(type), kMinimum = has_minimum(type),
                          kFifth = has_fifth_bit(type);
};
struct Converted {};

// Calls f(Stored<type>{}) for a type that products read in place, other than F32.
template <typename F>
inline auto with_stored_in_place(CacheType type, F f) {
    switch (type) {
        case CacheType::BF16:
            return f(Stored<CacheType::BF16>{});
        case CacheType::Q8_0:
            return f(Stored<CacheType::Q8_0>{});
        case CacheType::Q4_0:
            return f(Stored<CacheType::Q4_0>{});
        case CacheType::FP8:
            return f(Stored<CacheType::FP8>{});
        default:
            break;
    }
    return f(Stored<CacheType::F16>{});
}

// Calls f(Stored<type>{}) and returns its result.
template <typename F>
inline auto with_stored(CacheType type, F f) {
    switch (type) {
        case CacheType::F32:
            return f(Stored<CacheType::F32>{});
        case CacheType::Q5_1:
            return f(Stored<CacheType::Q5_1>{});
        case CacheType::Q5_0:
            return f(Stored<CacheType::Q5_0>{});
        case CacheType::Q4_1:
            return f(Stored<CacheType::Q4_1>{});
        case CacheType::IQ4_NL:
            return f(Stored<CacheType::IQ4_NL>{});
        default:
            return with_stored_in_place(type, f);
    }
}

inline void prefetch(const void *address) {
    __builtin_prefetch(address);
}

inline const uint16_t *halves(const std::byte *at) {
    return reinterpret_cast<const uint16_t *>(at);
}

// One vector of values without shared scales, from element `at` of a run.
template <typename L, CacheType type>
inline typename L::Float load_plain(const std::byte *run, int at) {
    if constexpr (type == CacheType::BF16) return L::load_bfloat(halves(run) + at);
    if constexpr (type == CacheType::FP8) return L::load_e4m3(reinterpret_cast<const uint8_t *>(run) + at);
    if constexpr (type == CacheType::F16) return L::load_half(halves(run) + at);
    if constexpr (type == CacheType::F32) return L::load(reinterpret_cast<const float *>(run) + at);
}

// One vector of the 32 integers of a block, from element `at` on; elements 16 apart share a byte. fifth_bits: of the
// block, for types that have them.
template <typename L, CacheType type>
inline typename L::Float load_integers(const std::byte *values, int at, uint32_t fifth_bits = 0) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(values) + at % 16;
    const int shift = at < 16 ? 0 : 4;
    if constexpr (type == CacheType::Q8_0) {
        return L::load_int8(reinterpret_cast<const int8_t *>(values) + at);
    } else if constexpr (type == CacheType::IQ4_NL) {
        return L::load_table(bytes, shift, kTable.of);
    } else if constexpr (type == CacheType::Q4_0) {
        return L::load_nibbles(bytes, shift);
    } else {
        // Nibbles are read 8 too low; the fifth bit is 16.
        constexpr float kClear = type == CacheType::Q5_0 ? -8 : 8;
        const auto nibbles = L::load_nibbles(bytes, shift), low = L::add(nibbles, L::set(kClear));
        if constexpr (type == CacheType::Q4_1) return low;
        return L::keep_bits(L::add(nibbles, L::set(kClear + 16)), low, fifth_bits >> at);
    }
}

inline uint32_t word_at(const std::byte *at) {
    uint32_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
}

// Reads the keys of 2 W cells dimension by dimension: call begin_block() before every 32 dimensions and next()
// for each one. ahead: the page that is read after this one; it is prefetched meanwhile.
template <typename L, typename Form>
class Keys {
    static constexpr CacheType kType = Form::kType;
    static constexpr size_t kDimBytes = kType == CacheType::Q4_0                              ? 16
                                        : kType == CacheType::Q8_0 || kType == CacheType::FP8 ? 32
                                        : kType == CacheType::F32                             ? 128
                                                                                              : 64;

  public:
    using Float = typename L::Float;
    Keys(const std::byte *page, const std::byte *ahead, int cell) : at_(page), ahead_(ahead), cell_(cell) {}

    void begin_block() {
        if constexpr (Form::kScaled) {
            low_scale_ = L::load_half(halves(at_) + cell_);
            high_scale_ = L::load_half(halves(at_) + cell_ + L::kWidth);
            at_ += 2 * kBlockTokens;
            ahead_ += 2 * kBlockTokens;
        }
    }
    void next(Float &low, Float &high) {
        prefetch(ahead_ + (kDimBytes == 64 ? 2 * cell_ : 0));
        if constexpr (Form::kScaled) {
            low = L::mul(low_scale_, load_integers<L, kType>(at_, cell_));
            high = L::mul(high_scale_, load_integers<L, kType>(at_, cell_ + L::kWidth));
        } else {
            low = load_plain<L, kType>(at_, cell_);
            high = load_plain<L, kType>(at_, cell_ + L::kWidth);
        }
        at_ += kDimBytes;
        ahead_ += kDimBytes;
    }

  private:
    const std::byte *at_, *ahead_;
    int cell_;
    Float low_scale_ = L::zero(), high_scale_ = L::zero();
};

template <typename L>
class Keys<L, Converted> {
  public:
    using Float = typename L::Float;
    Keys(const std::byte *page, const std::byte *, int cell)
        : at_(reinterpret_cast<const float *>(page) + cell) {}
    void begin_block() {}
    void next(Float &low, Float &high) {
        low = L::load(at_);
        high = L::load(at_ + L::kWidth);
        at_ += kBlockTokens;
    }

  private:
    const float *at_;
};

// Bytes of the first d dimensions of a row of values; d is a multiple of 32 in formats that share scales.
template <typename Form>
constexpr size_t value_offset(int32_t d) {
    if constexpr (std::is_same_v<Form, Converted>)
        return static_cast<size_t>(d) * sizeof(float);
    else if constexpr (Form::kScaled)
        return row_bytes(Form::kType, d);
    else
        return static_cast<size_t>(d) * (Form::kType == CacheType::FP8   ? 1
                                         : Form::kType == CacheType::F32 ? 4
                                                                         : 2);
}

// W values of a row, from its dimension `at` on.
template <typename L, typename Form>
inline typename L::Float load_values(const std::byte *row, int at) {
    if constexpr (std::is_same_v<Form, Converted>) {
        return L::load(reinterpret_cast<const float *>(row) + at);
    } else if constexpr (Form::kScaled) {
        const std::byte *block = row + value_offset<Form>(at / kFormatBlock * kFormatBlock);
        const std::byte *after = block + sizeof(uint16_t) * (Form::kMinimum ? 2 : 1);
        const auto scale = L::broadcast_half(halves(block));
        const auto level = load_integers<L, Form::kType>(after + (Form::kFifth ? 4 : 0), at % kFormatBlock,
                                                         Form::kFifth ? word_at(after) : 0);
        if constexpr (Form::kMinimum) return L::fma(scale, level, L::broadcast_half(halves(block) + 1));
        return L::mul(scale, level);
    } else {
        return load_plain<L, Form::kType>(row, at);
    }
}

template <typename L, typename Form>
inline void convert_plain_keys(const std::byte *page, const std::byte *ahead, int32_t dims, float *out) {
    for (int cell = 0; cell < kBlockTokens; cell += 2 * L::kWidth) {
        Keys<L, Form> keys(page, ahead, cell);
        float *to = out + cell;
        for (int32_t d = 0; d < dims; ++d, to += kBlockTokens) {
            if (d % kFormatBlock == 0) keys.begin_block();
            typename L::Float low, high;
            keys.next(low, high);
            L::store(to, low);
            L::store(to + L::kWidth, high);
        }
    }
}

// Up to 32 dimensions of the keys of a page whose type is not read in place. block: all 32 dimensions of the page.
template <typename L, typename Form>
inline void convert_key_block(const std::byte *block, const std::byte *ahead, int32_t dims, float *out) {
    constexpr int W = L::kWidth, N = kBlockTokens / W;
    typename L::Float scale[N], least[N];
    for (int i = 0; i < N; ++i) {
        scale[i] = L::load_half(halves(block) + i * W);
        if constexpr (Form::kMinimum) least[i] = L::load_half(halves(block) + kBlockTokens + i * W);
    }
    const std::byte *values = block + (Form::kMinimum ? 4 : 2) * kBlockTokens,
                    *fifth_bits = values + 16 * kFormatBlock;
    for (int32_t d = 0; d < dims; ++d, values += 16, fifth_bits += 4, out += kBlockTokens) {
        prefetch(ahead + (values - block));
        const uint32_t bits = Form::kFifth ? word_at(fifth_bits) : 0;
        for (int i = 0; i < N; ++i) {
            const auto level = load_integers<L, Form::kType>(values, i * W, bits);
            if constexpr (Form::kMinimum)
                L::store(out + i * W, L::fma(scale[i], level, least[i]));
            else
                L::store(out + i * W, L::mul(scale[i], level));
        }
    }
}

// Converts a page of keys. out: [dims][32].
template <typename L, typename Form>
void convert_keys(const std::byte *page, const std::byte *ahead, int32_t dims, float *out) {
    if constexpr (has_nibbles(Form::kType) && Form::kType != CacheType::Q4_0) {
        constexpr size_t kBytes = kBlockTokens * row_bytes(Form::kType, kFormatBlock);
        for (; dims > 0;
             dims -= kFormatBlock, page += kBytes, ahead += kBytes, out += kFormatBlock * kBlockTokens)
            convert_key_block<L, Form>(page, ahead, dims < kFormatBlock ? dims : kFormatBlock, out);
        return;
    } else {
        convert_plain_keys<L, Form>(page, ahead, dims, out);
    }
}

// Converts one row of values. out: `dims` values, rounded up to whole vectors.
template <typename L, typename Form>
void convert_values(const std::byte *row, int32_t dims, float *out) {
    constexpr int W = L::kWidth;
    int32_t d = 0;
    for (; d + W <= dims; d += W) L::store(out + d, load_values<L, Form>(row, d));
    if (d == dims) return;
    if constexpr (Form::kType == CacheType::F16)
        L::store_n(out + d, L::load_half_n(halves(row) + d, dims - d), dims - d);
    else  // rows are padded to whole blocks
        L::store_n(out + d, load_values<L, Form>(row, d), dims - d);
}

}  // namespace
}  // namespace runnel::kernels::cpu
