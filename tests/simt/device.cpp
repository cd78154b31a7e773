// device_emulated.h: coordinates, synchronization, shuffles and memory.
#include "kernels/cuda/runtime/device.h"

#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "tests/simt/access.h"
#include "tests/simt/block.h"

namespace runnel::kernels::cuda {

using simt::Launch;

namespace {

Launch &launch() {
    return *Launch::current();
}

template <class T>
T load(const void *p, simt::Load kind) {
    simt::expect_aligned(p, sizeof(T));
    simt::on_read(p, sizeof(T), kind);
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
void store(void *p, const T &value) {
    simt::expect_aligned(p, sizeof(T));
    simt::on_write(p, sizeof(T));
    std::memcpy(p, &value, sizeof value);
}

}  // namespace

// --- coordinates -----------------------------------------------------------------------------------------

int thread_index() {
    return launch().thread();
}
int lane_index() {
    return launch().lane().index;
}
int warp_index() {
    return launch().warp().index;
}
int block_threads() {
    return launch().threads();
}
int block_index() {
    return launch().block();
}
int block_count() {
    return launch().blocks();
}

bool is_turing() {
    return simt::settings().is_turing();
}

void *shared_memory_bytes(size_t bytes) {
    if (bytes > launch().shared_bytes())
        launch().fail([&] {
            return "needs " + std::to_string(bytes) + " bytes of shared memory, the launch gives " +
                   std::to_string(launch().shared_bytes());
        });
    return launch().shared();
}

// --- synchronization -------------------------------------------------------------------------------------

void block_sync(Place place) {
    launch().barrier(0, launch().threads(), place);
}

void warp_sync(Place place) {
    simt::Warp *warp = &launch().warp();
    launch().rendezvous(
        [](void *const *warps) {
            auto &w = *static_cast<simt::Warp *>(warps[0]);
            ++w.clocks[static_cast<size_t>(w.index)];
            bool waited = false;
            for (const simt::Lane *lane : w.lanes) waited |= lane->waited;
            for (simt::Lane *lane : w.lanes) lane->waited = waited;
        },
        warp, place);
}

void fence_gpu() {
    if (++launch().lane().fences != simt::settings().faults.fence) launch().fence();
}
// Code for less than sm_90 contains neither the wait nor the trigger.
void grid_dep_wait() {
    if (simt::settings().executes_wait()) launch().wait_for_launch_ahead();
}
void grid_dep_trigger() {
    if (simt::settings().executes_wait() && !launch().lane().waited)
        launch().fail("grid_dep_trigger before grid_dep_wait");
}

// --- warp collectives ------------------------------------------------------------------------------------

namespace {

struct Shuffle {
    uint32_t value, result;
    int source;
};

struct Vote {
    bool predicate;
    uint32_t result;
};

}  // namespace

uint32_t shfl_bits(uint32_t value, int source_lane, Place place) {
    if (source_lane < 0 || source_lane >= simt::kLanes)
        launch().fail([&] { return "shfl from lane " + std::to_string(source_lane); });
    Shuffle mine{value, 0, source_lane};
    launch().rendezvous(
        [](void *const *lanes) {
            for (int i = 0; i < simt::kLanes; ++i) {
                auto &to = *static_cast<Shuffle *>(lanes[i]);
                to.result = static_cast<const Shuffle *>(lanes[to.source])->value;
            }
        },
        &mine, place);
    return mine.result;
}

uint32_t ballot(bool predicate, Place place) {
    Vote mine{predicate, 0};
    launch().rendezvous(
        [](void *const *lanes) {
            uint32_t all = 0;
            for (int i = 0; i < simt::kLanes; ++i)
                all |= static_cast<uint32_t>(static_cast<const Vote *>(lanes[i])->predicate) << i;
            for (int i = 0; i < simt::kLanes; ++i) static_cast<Vote *>(lanes[i])->result = all;
        },
        &mine, place);
    return mine.result;
}

float warp_max(float value, Place place) {
    for (int mask = 16; mask > 0; mask /= 2) value = std::fmax(value, shfl_xor(value, mask, place));
    return value;
}

// --- memory ----------------------------------------------------------------------------------------------

uint4 ldg128_stream(const void *p) {
    return load<uint4>(p, simt::Load::Stream);
}
uint2 ldg64_stream(const void *p) {
    return load<uint2>(p, simt::Load::Stream);
}
uint32_t ldg32_stream(const void *p) {
    return load<uint32_t>(p, simt::Load::Stream);
}
uint4 ld128(const void *p) {
    return load<uint4>(p, simt::Load::Plain);
}
void st128(void *p, uint4 v) {
    store(p, v);
}
uint2 ld64(const void *p) {
    return load<uint2>(p, simt::Load::Plain);
}
void st64(void *p, uint2 v) {
    store(p, v);
}
uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(static_cast<const std::byte *>(p) - launch().shared());
}
uint4 lds128(uint32_t address) {
    return load<uint4>(launch().shared() + address, simt::Load::Plain);
}
uint2 lds64(uint32_t address) {
    return load<uint2>(launch().shared() + address, simt::Load::Plain);
}
uint32_t lds32(uint32_t address) {
    return load<uint32_t>(launch().shared() + address, simt::Load::Plain);
}

static void arrive(const simt::AsyncCopy &copy) {
    if (copy.from)
        std::memcpy(copy.to, copy.from, 16);
    else
        std::memset(copy.to, 0, 16);
    simt::on_async_arrival(copy.to);
}

void cp_async16(void *shared, const void *global, bool valid) {
    const void *from = valid ? global : nullptr;
    simt::on_async_start(shared, from);
    const simt::AsyncCopy copy{static_cast<std::byte *>(shared), static_cast<const std::byte *>(from)};
    if (is_turing())
        arrive(copy);
    else
        launch().lane().open.push_back(copy);
}

void cp_async_commit() {
    simt::Lane &lane = launch().lane();
    lane.committed.push_back(std::move(lane.open));
    lane.open.clear();
}

void cp_async_wait_pending(int pending) {
    if (simt::settings().faults.async_wait) return;
    simt::Lane &lane = launch().lane();
    while (static_cast<int>(lane.committed.size()) > pending) {
        for (const simt::AsyncCopy &copy : lane.committed.front()) arrive(copy);
        lane.committed.erase(lane.committed.begin());
    }
}

void prefetch_l2(const void *p, uint32_t bytes) {
    simt::on_prefetch(p, bytes);
}

uint32_t atomic_add_u32(uint32_t *p, uint32_t v) {
    simt::on_atomic(p, sizeof *p);
    launch().hand_over(p);
    const uint32_t old = *p;
    *p = old + v;
    return old;
}

uint32_t atomic_inc_wrap_u32(uint32_t *p, uint32_t last) {
    simt::on_atomic(p, sizeof *p);
    launch().hand_over(p);
    const uint32_t old = *p;
    *p = old >= last ? 0 : old + 1;
    return old;
}

uint64_t atomic_max_u64(uint64_t *p, uint64_t v) {
    simt::on_atomic(p, sizeof *p);
    launch().hand_over(p);
    const uint64_t old = *p;
    *p = old > v ? old : v;
    return old;
}

// --- bits and numbers ------------------------------------------------------------------------------------

uint32_t prmt_signs(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = uint64_t{b} << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t pick = selector >> 4 * i & 0xfu;
        auto byte = static_cast<uint32_t>(bytes >> 8 * (pick & 7u) & 0xffu);
        if (pick & 8u) byte = byte & 0x80u ? 0xffu : 0;  // the sign bit, replicated
        r |= byte << 8 * i;
    }
    return r;
}

// As __byte_perm() does: the signs cannot be asked for.
uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
    return prmt_signs(a, b, selector & 0x7777u);
}

int32_t float_to_int_rn(float x) {
    if (std::isnan(x)) return 0;
    if (x >= 0x1p31f) return INT32_MAX;
    if (x < -0x1p31f) return INT32_MIN;
    return static_cast<int32_t>(std::rint(x));
}

uint16_t f32_to_f16(float x) {
    return gguf::f32_to_f16(x);
}
uint16_t f32_to_bf16(float x) {
    return is_turing() ? turing::f32_to_bf16(x) : gguf::f32_to_bf16(x);
}
float f16_to_f32(uint16_t h) {
    return gguf::f16_to_f32(h);
}
uint32_t pack_f16(float lo, float hi) {
    return uint32_t{f32_to_f16(hi)} << 16 | f32_to_f16(lo);
}
uint32_t pack_bf16(float lo, float hi) {
    return uint32_t{f32_to_bf16(hi)} << 16 | f32_to_bf16(lo);
}

namespace {

// f(a, b, c) in double precision is exact enough to be rounded once to binary16: the product of two 11-bit
// significands has 22 bits, and a sum that loses bits in double loses them far below the rounding.
template <class F>
uint32_t each_half(uint32_t a, uint32_t b, uint32_t c, F f) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) {
        const auto half = [i](uint32_t v) {
            return static_cast<double>(f16_to_f32(static_cast<uint16_t>(v >> i)));
        };
        const double exact = f(half(a), half(b), half(c));
        // Converts to float with the sticky bit (round to odd), so that the second rounding is the only one.
        auto near = static_cast<float>(exact);
        if (std::isfinite(near) && static_cast<double>(near) != exact) {
            if (std::abs(static_cast<double>(near)) > std::abs(exact)) near = std::nextafter(near, 0.0f);
            near = std::bit_cast<float>(std::bit_cast<uint32_t>(near) | 1u);
        }
        r |= static_cast<uint32_t>(f32_to_f16(near)) << i;
    }
    return r;
}

}  // namespace

uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c) {
    return each_half(a, b, c, [](double x, double y, double z) { return x * y + z; });
}
uint32_t h2_sub(uint32_t a, uint32_t b) {
    return each_half(a, b, 0, [](double x, double y, double) { return x - y; });
}
uint32_t h2_mul(uint32_t a, uint32_t b) {
    return each_half(a, b, 0, [](double x, double y, double) { return x * y; });
}

}  // namespace runnel::kernels::cuda
