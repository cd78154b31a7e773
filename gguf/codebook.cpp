#include "gguf/codebook.h"

#include "gguf/codebook_codes.h"

namespace runnel::gguf {
namespace {

template <class Entry, int kBits, size_t kCount>
constexpr std::array<Entry, kCount> expand(const uint16_t (&codes)[kCount],
                                           const uint8_t (&levels)[1 << kBits]) {
    std::array<Entry, kCount> entries{};
    for (size_t i = 0; i < kCount; ++i)
        for (size_t k = 0; k < sizeof(Entry); ++k) {
            const auto level = static_cast<Entry>(levels[codes[i] >> (kBits * k) & ((1 << kBits) - 1)]);
            entries[i] = static_cast<Entry>(entries[i] | level << (8 * k));
        }
    return entries;
}

}  // namespace

constexpr std::array<uint64_t, 256> kGridIQ2_XXS = expand<uint64_t, 2>(kCodesIQ2_XXS, kLevelsIQ2);
constexpr std::array<uint64_t, 512> kGridIQ2_XS = expand<uint64_t, 2>(kCodesIQ2_XS, kLevelsIQ2);
constexpr std::array<uint64_t, 1024> kGridIQ2_S = expand<uint64_t, 2>(kCodesIQ2_S, kLevelsIQ2);
constexpr std::array<uint32_t, 256> kGridIQ3_XXS = expand<uint32_t, 3>(kCodesIQ3_XXS, kLevelsIQ3_XXS);
constexpr std::array<uint32_t, 512> kGridIQ3_S = expand<uint32_t, 3>(kCodesIQ3_S, kLevelsIQ3_S);
constexpr std::array<uint64_t, 2048> kGridIQ1 = expand<uint64_t, 2>(kCodesIQ1, kLevelsIQ1);

}  // namespace runnel::gguf
