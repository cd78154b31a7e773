// Measures the matrix kernels: GMAC/s and GB/s per format, number of tokens and threads, and the read
// bandwidth.
//   bench_linear [--isa NAME] [--rows N] [--cols N] [--threads N] [--tokens a,b,c] [--types a,b,c] [--reps N]
//   [--mb N] [--lookup 1]
// --lookup 1: weights of one and two bits by looking up sums (linear_lookup.h), which are computed anew for each matrix.
// Each figure is the best of several passes over matrices that together exceed the caches (one token), or
// over one matrix (many tokens). Rows are split in contiguous halves, as the engine splits them.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_lookup.h"
#include "kernels/cpu/linear_packed.h"
#include "tests/kernels/cpu/random_blocks.h"
#include "tests/support/cpu_time.h"

using namespace runnel;
using namespace runnel::kernels::cpu;

namespace {

struct Free {
    void operator()(void *p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

Buffer aligned_buffer(size_t bytes) {
    return Buffer(static_cast<std::byte *>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
}

// Best of `reps` runs of work(thread) on all threads: seconds of processor time of the slowest thread.
double best_seconds(int threads, int reps, const std::function<void(int)> &work) {
    double best = 1e30;
    std::barrier sync(threads);
    std::vector<double> seconds(static_cast<size_t>(threads));
    const auto body = [&](int thread) {
        for (int i = 0; i < reps; ++i) {
            sync.arrive_and_wait();
            const double start = testing::thread_seconds();
            work(thread);
            seconds[static_cast<size_t>(thread)] = testing::thread_seconds() - start;
            sync.arrive_and_wait();
            if (thread == 0) best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
        }
    };
    std::vector<std::thread> helpers;
    for (int t = 1; t < threads; ++t) helpers.emplace_back(body, t);
    body(0);
    for (std::thread &t : helpers) t.join();
    return best;
}

using Vector = long long __attribute__((vector_size(16)));  // what every x86-64 adds in one instruction

uint64_t read_all(const std::byte *p, size_t bytes) {
    Vector sums[8] = {};
    for (size_t i = 0; i + sizeof sums <= bytes; i += sizeof sums)
        for (size_t j = 0; j < 8; ++j) sums[j] += *reinterpret_cast<const Vector *>(p + i + 16 * j);
    for (size_t j = 1; j < 8; ++j) sums[0] += sums[j];
    return static_cast<uint64_t>(sums[0][0] + sums[0][1]);
}

struct Options {
    std::string isa = "avx512";
    int64_t rows = 2048, cols = 5632;
    int threads = 0, reps = 15, megabytes = 96;  // threads 0: one and two
    bool lookup = false;
    std::vector<int> tokens = {1, 2, 3, 4, 8, 16, 32, 128, 512};
    std::vector<std::string> types = {"q4_0", "q4_K", "q6_K", "q8_0", "f16"};
};

std::vector<std::string> split(const std::string &list) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= list.size();) {
        const size_t end = std::min(list.find(',', at), list.size());
        parts.push_back(list.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

Options parse(int argc, char **argv) {
    Options o;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string key = argv[i], value = argv[i + 1];
        if (key == "--isa") o.isa = value;
        if (key == "--rows") o.rows = std::stol(value);
        if (key == "--cols") o.cols = std::stol(value);
        if (key == "--threads") o.threads = std::stoi(value);
        if (key == "--mb") o.megabytes = std::stoi(value);
        if (key == "--reps") o.reps = std::stoi(value);
        if (key == "--types") o.types = split(value);
        if (key == "--lookup") o.lookup = value != "0";
        if (key == "--tokens") {
            o.tokens.clear();
            for (const std::string &t : split(value)) o.tokens.push_back(std::stoi(t));
        }
    }
    return o;
}

void measure(const LinearKernels &kernels, gguf::Type type, int threads, const Options &o) {
    const bool lookup = o.lookup && lookup_stride(type, o.cols) > 0;
    const size_t row_bytes = gguf::row_bytes(type, o.cols),
                 matrix =
                     lookup ? lookup_bytes(type, o.rows, o.cols) : row_bytes * static_cast<size_t>(o.rows);
    const int copies =
        static_cast<int>(std::max<size_t>(2, (static_cast<size_t>(o.megabytes) << 20) / matrix));
    std::mt19937 random(1);
    std::vector<std::byte> one = tests::random_weights(type, o.rows, o.cols, random);
    if (lookup) {
        std::vector<std::byte> tiles(matrix);
        write_lookup_tiles(type, one.data(), o.cols, 0, o.rows, tiles.data());
        one = std::move(tiles);
    }
    const Buffer weights = aligned_buffer(matrix * static_cast<size_t>(copies));
    for (int c = 0; c < copies; ++c)
        std::memcpy(weights.get() + matrix * static_cast<size_t>(c), one.data(), matrix);
    std::vector<Buffer> scratch;
    const size_t scratch_bytes =
        std::max(kernels.scratch_bytes(o.cols),
                 lookup_sums_bytes(o.cols, *std::max_element(o.tokens.begin(), o.tokens.end())));
    for (int t = 0; t < threads; ++t) scratch.push_back(aligned_buffer(scratch_bytes));

    std::vector<uint64_t> sink(static_cast<size_t>(threads));
    const double read = best_seconds(threads, o.reps, [&](int thread) {
        const size_t part = matrix * static_cast<size_t>(copies) / static_cast<size_t>(threads) / 128 * 128;
        sink[static_cast<size_t>(thread)] =
            read_all(weights.get() + part * static_cast<size_t>(thread), part);
    });
    std::printf("%-7s %d thread%s  read %.1f GB/s |", gguf::traits(type).name.data(), threads,
                threads > 1 ? "s" : " ", static_cast<double>(matrix) * copies / read / 1e9);
    for (int tokens : o.tokens) {
        const ActFormat format = act_format(type);
        std::vector<float> x(static_cast<size_t>(o.cols * tokens));
        std::normal_distribution<float> normal;
        for (float &v : x) v = normal(random);
        const Buffer packed = aligned_buffer(packed_bytes(format, o.cols, tokens));
        kernels.pack(format, x.data(), o.cols, o.cols, tokens, 0, tokens, 0, o.cols, packed.get());
        std::vector<float> out(static_cast<size_t>(o.rows * tokens));
        const int used = tokens <= 16 ? copies : 1;
        const int64_t part = (o.rows / threads + 15) / 16 * 16;
        const double seconds =
            best_seconds(threads, tokens >= 128 ? std::max(3, o.reps / 2) : o.reps, [&](int thread) {
                for (int c = 0; c < used; ++c) {
                    const std::byte *w = weights.get() + matrix * static_cast<size_t>(c);
                    const int64_t row0 = std::min(o.rows, part * thread),
                                  row1 = std::min(o.rows, row0 + part);
                    const std::byte *next =
                        c + 1 < used ? w + matrix + row_bytes * static_cast<size_t>(row0) : nullptr;
                    std::byte *own = scratch[static_cast<size_t>(thread)].get();
                    if (lookup) {
                        kernels.lookup->sum(packed.get(), o.cols, tokens, own);
                        kernels.lookup->multiply(type, w, o.cols, row0, row1, own, tokens, out.data(), o.rows,
                                                 next);
                    } else {
                        kernels.multiply(type, w, o.cols, row0, row1, packed.get(), tokens, out.data(),
                                         o.rows, own, next);
                    }
                }
            });
        const double macs = static_cast<double>(o.rows) * static_cast<double>(o.cols) * tokens * used;
        if (tokens == 1)
            std::printf(" n=1: %.1f GB/s", static_cast<double>(matrix) * used / seconds / 1e9);
        else
            std::printf(" %d: %.0f", tokens, macs / seconds / 1e9);
        std::fflush(stdout);
    }
    std::printf("\n");
}

}  // namespace

int main(int argc, char **argv) {
    const Options o = parse(argc, argv);
    const LinearKernels *kernels = o.isa == "scalar" ? &linear_scalar()
                                   : o.isa == "avx2" ? linear_avx2()
                                   : o.isa == "amx"  ? linear_amx()
                                                     : linear_avx512();
    if (kernels == nullptr) return std::puts("this CPU lacks the instructions"), 1;
    std::printf("%s, %ld x %ld; n=1 in GB/s of weights, others in GMAC/s\n", kernels->name,
                static_cast<long>(o.rows), static_cast<long>(o.cols));
    std::vector<gguf::Type> types(std::begin(tests::kLinearTypes), std::end(tests::kLinearTypes));
    for (const std::string &name : o.types)
        for (gguf::Type type : types)
            if (name == gguf::traits(type).name || name == "all")
                for (int threads : o.threads != 0 ? std::vector<int>{o.threads} : std::vector<int>{1, 2})
                    measure(*kernels, type, threads, o);
}
