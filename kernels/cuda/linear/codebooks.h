// The codebooks of gguf/codebook.h as kernels read them: in shared memory, one word per entry, so
// that a lane gets four weights of an entry with one load and at most one permute.
//   IQ1, IQ2   nibble k is the level of weight k, 0..2: a half of the word is the selector of a prmt
//   IQ3        byte k is weight k
// Device memory holds compact codes of the entries (12 KB in all); each block expands them
// once.
#pragma once

#include <cstdint>

#include "gguf/codebook_codes.h"
#include "kernels/cuda/linear/tiles.h"
#include "kernels/cuda/runtime/device.h"

namespace runnel::kernels::cuda {

namespace {

template <int kCount>
struct Codes {
    uint16_t code[kCount];
};
template <int kCount>
constexpr Codes<kCount> codes_of(const uint16_t (&from)[kCount]) {
    Codes<kCount> codes{};
    for (int i = 0; i < kCount; ++i) codes.code[i] = from[i];
    return codes;
}
DEVICE_DATA Codes<256> kDeviceIQ2_XXS = codes_of(gguf::kCodesIQ2_XXS);
DEVICE_DATA Codes<512> kDeviceIQ2_XS = codes_of(gguf::kCodesIQ2_XS);
DEVICE_DATA Codes<1024> kDeviceIQ2_S = codes_of(gguf::kCodesIQ2_S);
DEVICE_DATA Codes<256> kDeviceIQ3_XXS = codes_of(gguf::kCodesIQ3_XXS);
DEVICE_DATA Codes<512> kDeviceIQ3_S = codes_of(gguf::kCodesIQ3_S);
DEVICE_DATA Codes<2048> kDeviceIQ1 = codes_of(gguf::kCodesIQ1);

}  // namespace

// Entries of a format's codebook; 0: none.
constexpr int book_words(TileFormat f) {
    switch (f) {
        case TileFormat::IQ1:
            return 2048;
        case TileFormat::IQ2_S:
            return 1024;
        case TileFormat::IQ2_XS:
        case TileFormat::IQ3_S:
            return 512;
        case TileFormat::IQ2_XXS:
        case TileFormat::IQ3_XXS:
            return 256;
        default:
            return 0;
    }
}

DEVICE uint32_t book_code(TileFormat f, int i) {
    switch (f) {
        case TileFormat::IQ1:
            return kDeviceIQ1.code[i];
        case TileFormat::IQ2_XXS:
            return kDeviceIQ2_XXS.code[i];
        case TileFormat::IQ2_XS:
            return kDeviceIQ2_XS.code[i];
        case TileFormat::IQ2_S:
            return kDeviceIQ2_S.code[i];
        case TileFormat::IQ3_XXS:
            return kDeviceIQ3_XXS.code[i];
        default:
            return kDeviceIQ3_S.code[i];
    }
}

// The expanded word of an entry, from its compact code.
DEVICE uint32_t book_word(TileFormat f, uint32_t code) {
    if (has_quads(f)) {
        uint32_t level = (code & 0x3fu) | (code & 0xfc0u) << 10;
        level = (level & 0x00070007u) | (level & 0x00380038u) << 5;
        // gguf::kLevelsIQ3_S and _XXS; the last level of the latter is 2 above the linear formula.
        if (f == TileFormat::IQ3_S) return 2 * level + 0x01010101u;
        return 8 * level + 0x04040404u + 2 * ((level + 0x01010101u) >> 3 & 0x01010101u);
    }
    uint32_t levels = (code | code << 8) & 0x00ff00ffu;
    levels = (levels | levels << 4) & 0x0f0f0f0fu;
    return (levels | levels << 2) & 0x33333333u;
}

// All threads of a block fill its codebook; a block_sync must follow.
DEVICE void fill_book(TileFormat f, uint32_t *book) {
    for (int i = thread_index(); i < book_words(f); i += block_threads())
        book[i] = book_word(f, book_code(f, i));
}

// A lane's view of the codebook: [index] is a whole entry (IQ3), otherwise the half with the lane's columns.
template <TileFormat F>
struct Book {
    const uint8_t *base = nullptr;

    DEVICE Book() {}
    explicit DEVICE Book(const uint32_t *book)
        : base(reinterpret_cast<const uint8_t *>(book) + (has_quads(F) ? 0 : lane_index() % 2 * 2)) {}
    DEVICE uint32_t operator[](uint32_t index) const {
        if constexpr (has_quads(F))
            return *reinterpret_cast<const uint32_t *>(base + 4 * index);
        else
            return *reinterpret_cast<const uint16_t *>(base + 4 * index);
    }
};

// The four weights that `selectors` name, as bytes weight + 128, or (kInt8) as int8. A selector is a level, plus 4 for the
// second value: IQ2 levels are 8, 25, 43, or with bit 2 their negatives (gguf::kLevelsIQ2); IQ1 has
// 8 (level - 1) + 1, or with bit 2 8 (level - 1) - 1.
template <TileFormat F, bool kInt8>
DEVICE uint32_t book_values(uint32_t selectors) {
    constexpr uint32_t kFlip = kInt8 ? 0x00808080u : 0;
    if constexpr (F == TileFormat::IQ1)
        return prmt(0x00898179u ^ kFlip, 0x00877f77u ^ kFlip, selectors);
    else
        return prmt(0x00ab9988u ^ kFlip, 0x00556778u ^ kFlip, selectors);
}

}  // namespace runnel::kernels::cuda
