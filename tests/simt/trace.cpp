// Implements the calls that -fsanitize=thread inserts before every load and store of the kernels;
// ThreadSanitizer itself is not linked. (Kernels are compiled without calls at function entry and exit.)
#include <cstddef>

#include "tests/simt/access.h"

using runnel::simt::expect_aligned;
using runnel::simt::on_read;
using runnel::simt::on_write;

namespace {

// The alignment that a device requires and x86 does not. (16 bytes may be two words of a struct, which a
// device copies one by one; the compiler reports larger accesses without a size.)
constexpr size_t alignment(size_t bytes) {
    return bytes < 8 ? bytes : 8;
}
template <size_t kBytes>
void aligned_read(void *p) {
    expect_aligned(p, alignment(kBytes));
    on_read(p, kBytes);
}
template <size_t kBytes>
void aligned_write(void *p) {
    expect_aligned(p, alignment(kBytes));
    on_write(p, kBytes);
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_read1(void *p) {
    on_read(p, 1);
}
void __tsan_read2(void *p) {
    aligned_read<2>(p);
}
void __tsan_read4(void *p) {
    aligned_read<4>(p);
}
void __tsan_read8(void *p) {
    aligned_read<8>(p);
}
void __tsan_read16(void *p) {
    aligned_read<16>(p);
}
void __tsan_write1(void *p) {
    on_write(p, 1);
}
void __tsan_write2(void *p) {
    aligned_write<2>(p);
}
void __tsan_write4(void *p) {
    aligned_write<4>(p);
}
void __tsan_write8(void *p) {
    aligned_write<8>(p);
}
void __tsan_write16(void *p) {
    aligned_write<16>(p);
}
void __tsan_unaligned_read2(void *p) {
    on_read(p, 2);
}
void __tsan_unaligned_read4(void *p) {
    on_read(p, 4);
}
void __tsan_unaligned_read8(void *p) {
    on_read(p, 8);
}
void __tsan_unaligned_read16(void *p) {
    on_read(p, 16);
}
void __tsan_unaligned_write2(void *p) {
    on_write(p, 2);
}
void __tsan_unaligned_write4(void *p) {
    on_write(p, 4);
}
void __tsan_unaligned_write8(void *p) {
    on_write(p, 8);
}
void __tsan_unaligned_write16(void *p) {
    on_write(p, 16);
}
void __tsan_read_range(void *p, size_t bytes) {
    on_read(p, bytes);
}
void __tsan_write_range(void *p, size_t bytes) {
    on_write(p, bytes);
}
}
