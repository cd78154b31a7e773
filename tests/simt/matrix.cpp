// device_emulated.h: ldmatrix and mma, with the fragment layouts of the PTX manual.
#include <array>
#include <bit>
#include <cstring>

#include "gguf/half.h"
#include "kernels/cuda/runtime/device.h"
#include "tests/simt/access.h"
#include "tests/simt/block.h"

namespace runnel::kernels::cuda {

using simt::kLanes;
using simt::Launch;

namespace {

struct LoadMatrix {
    std::array<uint8_t, 16> row;  // this lane's
    uint32_t *registers;
    int matrices;
    bool transposed;
};

void distribute(void *const *lanes) {
    const auto &first = *static_cast<const LoadMatrix *>(lanes[0]);
    for (int lane = 0; lane < kLanes; ++lane)
        for (int m = 0; m < first.matrices; ++m) {
            const int g = lane / 4, t = lane % 4;
            uint32_t value = 0;
            for (int i = 0; i < 2; ++i) {
                const int row = first.transposed ? 2 * t + i : g, column = first.transposed ? g : 2 * t + i;
                uint16_t element;
                std::memcpy(&element,
                            static_cast<const LoadMatrix *>(lanes[8 * m + row])->row.data() + 2 * column,
                            sizeof element);
                value |= static_cast<uint32_t>(element) << 16 * i;
            }
            static_cast<LoadMatrix *>(lanes[lane])->registers[m] = value;
        }
}

void load_matrix(uint32_t *registers, int matrices, bool transposed, const void *row, const Place &place) {
    Launch &launch = *Launch::current();
    LoadMatrix mine{{}, registers, matrices, transposed};
    if (launch.lane().index < 8 * matrices) {  // the other lanes' addresses are not used
        simt::expect_aligned(row, 16);
        if (!simt::is_shared(row)) launch.fail("ldmatrix: a row is not in shared memory");
        simt::on_read(row, 16);
        std::memcpy(mine.row.data(), row, 16);
    }
    launch.rendezvous(distribute, &mine, place);
}

struct Multiply {
    const uint32_t *a, *b;
    void *c;
};

const Multiply &of(void *const *lanes, int g, int t) {
    return *static_cast<const Multiply *>(lanes[4 * g + t]);
}

// Gathers A, [16][K], and B, [8][K] (by column), from the registers of all lanes.
template <int K, class T, class Convert>
void gather(void *const *lanes, T (&a)[16][K], T (&b)[8][K], Convert convert) {
    constexpr int kPer = K == 16 && std::is_same_v<T, float> ? 2 : 4;  // values per register
    constexpr int kHalf = 4 * kPer;                                    // values of k per register of 4 lanes
    constexpr int kHalves = K / kHalf;
    for (int g = 0; g < 8; ++g)
        for (int t = 0; t < 4; ++t) {
            const Multiply &lane = of(lanes, g, t);
            for (int h = 0; h < kHalves; ++h)
                for (int i = 0; i < kPer; ++i) {
                    const int k = kHalf * h + kPer * t + i, shift = i * (32 / kPer);
                    a[g][k] = convert(lane.a[2 * h] >> shift);
                    a[g + 8][k] = convert(lane.a[2 * h + 1] >> shift);
                    b[g][k] = convert(lane.b[h] >> shift);
                }
        }
}

template <class T, class Sum>
void scatter(void *const *lanes, Sum sum) {
    for (int g = 0; g < 8; ++g)
        for (int t = 0; t < 4; ++t) {
            auto *c = static_cast<T *>(of(lanes, g, t).c);
            for (int i = 0; i < 4; ++i) c[i] = sum(g + 8 * (i / 2), 2 * t + i % 2, c[i]);
        }
}

template <class Convert>
void multiply_float(void *const *lanes, Convert convert) {
    float a[16][16], b[8][16];
    gather<16>(lanes, a, b, convert);
    scatter<float>(lanes, [&](int row, int column, float c) {
        for (int k = 0; k < 16; ++k) c += a[row][k] * b[column][k];
        return c;
    });
}

void multiply_f16(void *const *lanes) {
    multiply_float(lanes, [](uint32_t bits) { return gguf::f16_to_f32(static_cast<uint16_t>(bits)); });
}

void multiply_bf16(void *const *lanes) {
    multiply_float(lanes, [](uint32_t bits) { return gguf::bf16_to_f32(static_cast<uint16_t>(bits)); });
}

// Left: the type of A's bytes.
template <int K, class Left>
void multiply_bytes(void *const *lanes) {
    int32_t a[16][K], b[8][K], unused_a[16][K], unused_b[8][K];
    gather<K>(lanes, a, unused_b, [](uint32_t bits) { return int32_t{static_cast<Left>(bits)}; });
    gather<K>(lanes, unused_a, b, [](uint32_t bits) { return int32_t{static_cast<int8_t>(bits)}; });
    scatter<int32_t>(lanes, [&](int row, int column, int32_t c) {
        int32_t sum = 0;
        for (int k = 0; k < K; ++k) sum += a[row][k] * b[column][k];
        return static_cast<int32_t>(static_cast<uint32_t>(c) + static_cast<uint32_t>(sum));  // wraps
    });
}

void multiply(simt::Collective collective, const uint32_t *a, const uint32_t *b, void *c,
              const Place &place) {
    Multiply mine{a, b, c};
    Launch::current()->rendezvous(collective, &mine, place);
}

}  // namespace

void ldmatrix_x4(uint32_t (&r)[4], const void *row, Place place) {
    load_matrix(r, 4, false, row, place);
}
void ldmatrix_x2(uint32_t (&r)[2], const void *row, Place place) {
    load_matrix(r, 2, false, row, place);
}
void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row, Place place) {
    load_matrix(r, 4, true, row, place);
}

void mma_f16_k8(float (&c)[4], const uint32_t (&a)[2], uint32_t b, Place place) {
    const uint32_t left[4] = {a[0], a[1], 0, 0}, upper[2] = {b, 0};
    multiply(multiply_f16, left, upper, c, place);
}
void mma_f16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
    if (is_turing()) return turing::mma_f16_k16(c, a, b);
    multiply(multiply_f16, a, b, c, place);
}
void mma_bf16_k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
    if (is_turing()) return turing::mma_bf16_k16(c, a, b);
    multiply(multiply_bf16, a, b, c, place);
}

template <class Left>
static void multiply_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b, const Place &place) {
    const uint32_t rows[2] = {a, 0};  // the upper half of the larger product
    int32_t c[4] = {c0, c1, 0, 0};
    multiply(multiply_bytes<16, Left>, rows, &b, c, place);
    c0 = c[0], c1 = c[1];
}
void mma_s8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b, Place place) {
    multiply_m8n8k16<int8_t>(c0, c1, a, b, place);
}
void mma_u8_m8n8k16(int32_t &c0, int32_t &c1, uint32_t a, uint32_t b, Place place) {
    multiply_m8n8k16<uint8_t>(c0, c1, a, b, place);
}
void mma_s8_k16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b, Place place) {
    if (is_turing()) return turing::mma_s8_k16(c, a, b);
    multiply(multiply_bytes<16, int8_t>, a, &b, c, place);
}
void mma_s8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
    if (is_turing()) return turing::mma_s8_k32(c, a, b);
    multiply(multiply_bytes<32, int8_t>, a, b, c, place);
}
void mma_u8_k32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
    if (is_turing()) return turing::mma_u8_k32(c, a, b);
    multiply(multiply_bytes<32, uint8_t>, a, b, c, place);
}

}  // namespace runnel::kernels::cuda
