// AMX instructions: eight tile registers of up to 16 rows of 64 bytes, and dot products of two tiles.
//
// dot_tiles<sums, a, b>() adds sum_k a[m][k] b[k][n] to sums[m][n]. sums: 16 x 16 integers of 32 bits. a: up to 16 rows (tokens)
// of up to 64 int8 columns. b: one row per four columns, whose lane n holds four weights of matrix row n (the layout of
// the registers in linear_tile.h). With 16 tokens a product takes 16 clocks for any number of columns, so at most 1,024 multiply-adds
// per clock; a vpdpbusd computes 64. (GCC 12's intrinsics accept only literal register numbers.)
#pragma once

#include <cstdint>

#include "kernels/cpu/amx_shapes.h"

namespace runnel::kernels::cpu {
namespace {

// Sets the shapes of all tiles, and their contents to 0.
[[gnu::always_inline]] inline void use_tiles(const TileShapes &shapes) {
    asm volatile("ldtilecfg %0" : : "m"(shapes));
}
// Frees the tiles: a context switch then saves no tile state of this thread.
[[gnu::always_inline]] inline void release_tiles() {
    asm volatile("tilerelease");
}
template <int tile>
[[gnu::always_inline]] inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int tile>
[[gnu::always_inline]] inline void load_tile(const void *p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
[[gnu::always_inline]] inline void store_tile(void *p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(tile) : "memory");
}
// a and b are signed.
template <int sums, int a, int b>
[[gnu::always_inline]] inline void dot_tiles() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}
// a is signed, b unsigned.
template <int sums, int a, int b>
[[gnu::always_inline]] inline void dot_tiles_unsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}

}  // namespace
}  // namespace runnel::kernels::cpu
