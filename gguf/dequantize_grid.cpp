#include "gguf/grid_blocks.h"

namespace runnel::gguf {
namespace {

// Writes the weights of an entry times `step`, with their signs (bit k: weight k is negative).
template <class Entry>
void put(Entry entry, int signs, float step, float *out) {
    for (size_t k = 0; k < sizeof entry; ++k) {
        const float magnitude = static_cast<float>(entry >> (8 * k) & 255);
        out[k] = step * magnitude * (signs >> k & 1 ? -1.0f : 1.0f);
    }
}

uint32_t word(const uint8_t *bytes) {
    return static_cast<uint32_t>(bytes[0] | bytes[1] << 8 | bytes[2] << 16) | static_cast<uint32_t>(bytes[3])
                                                                                  << 24;
}

float half_step(float d, uint32_t s) {
    return d * (0.5f + static_cast<float>(s));
}

int nibble(const uint8_t *bytes, int i) {
    return bytes[i / 2] >> (4 * (i % 2)) & 15;
}

void put_shifted(uint64_t entry, bool negative, float step, float *out) {
    const float shift = negative ? -0.125f : 0.125f;
    for (int k = 0; k < 8; ++k)
        out[k] = step * (static_cast<float>(static_cast<int>(entry >> (8 * k) & 255) - 1) + shift);
}

}  // namespace

void decode(const BlockIQ2_XXS &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) {
        const uint16_t *group = b.qs + i / 4 * 4;
        const uint32_t signs = group[2] | static_cast<uint32_t>(group[3]) << 16;
        const int entry = group[i % 4 / 2] >> (8 * (i % 2)) & 255;
        put(kGridIQ2_XXS[static_cast<size_t>(entry)], eight_signs(signs >> (7 * (i % 4)) & 127),
            half_step(d, signs >> 28) * 0.25f, out + 8 * i);
    }
}

void decode(const BlockIQ2_XS &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i)
        put(kGridIQ2_XS[b.qs[i] & 511u], eight_signs(b.qs[i] >> 9),
            half_step(d, static_cast<uint32_t>(nibble(b.scales, i / 2))) * 0.25f, out + 8 * i);
}

void decode(const BlockIQ2_S &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) {
        const int high = b.qh[i / 4] >> (2 * (i % 4)) & 3;
        put(kGridIQ2_S[static_cast<size_t>(b.qs[i] | high << 8)], b.signs[i],
            half_step(d, static_cast<uint32_t>(nibble(b.scales, i / 2))) * 0.25f, out + 8 * i);
    }
}

void decode(const BlockIQ3_XXS &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) {
        const uint32_t bits = word(b.signs_scale + i / 4 * 4);
        const int signs = eight_signs(bits >> (7 * (i % 4)) & 127);
        const float step = half_step(d, bits >> 28) * 0.5f;
        put(kGridIQ3_XXS[b.qs[2 * i]], signs, step, out + 8 * i);
        put(kGridIQ3_XXS[b.qs[2 * i + 1]], signs >> 4, step, out + 8 * i + 4);
    }
}

void decode(const BlockIQ3_S &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 64; ++i) {
        const int high = b.qh[i / 8] >> (i % 8) & 1;
        put(kGridIQ3_S[static_cast<size_t>(b.qs[i] | high << 8)], b.signs[i / 2] >> (4 * (i % 2)),
            d * static_cast<float>(1 + 2 * nibble(b.scales, i / 8)), out + 4 * i);
    }
}

void decode(const BlockIQ1_S &b, float *out) {
    const float d = f16_to_f32(b.d);
    for (int i = 0; i < 32; ++i) {
        const int bits = b.qh[i / 4], high = bits >> (3 * (i % 4)) & 7;
        put_shifted(kGridIQ1[static_cast<size_t>(b.qs[i] | high << 8)], (bits & 0x8000) != 0,
                    d * static_cast<float>(2 * (bits >> 12 & 7) + 1), out + 8 * i);
    }
}

void decode(const BlockIQ1_M &b, float *out) {
    const float d = f16_to_f32(iq1_m_scale(b.scales));
    for (int i = 0; i < 32; ++i) {
        const int bits = nibble(b.qh, i);
        put_shifted(kGridIQ1[static_cast<size_t>(b.qs[i] | (bits & 7) << 8)], (bits & 8) != 0,
                    d * static_cast<float>(2 * iq1_m_group_scale(b.scales, i / 2) + 1), out + 8 * i);
    }
}

}  // namespace runnel::gguf
