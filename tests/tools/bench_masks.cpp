// Speed of masks, in CPU time: bench-masks VOCABULARY.gguf [SCHEMAS.json]. For every recorded schema, a grammar is compiled and its
// accepted texts are followed token by token, as the vocabulary cuts them, with a mask for every position.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/grammar/masks.h"
#include "engine/grammar/source.h"

using namespace runnel;
using namespace runnel::grammar;

namespace {

// CPU time of this thread: what else the machine does is not measured.
double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}
double microseconds_since(double start) {
    return now() - start;
}

void report(const char *what, std::vector<double> &times) {
    if (times.empty()) return;
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
        return times[std::min(times.size() - 1,
                              static_cast<size_t>(share * static_cast<double>(times.size())))];
    };
    double sum = 0;
    for (const double t : times) sum += t;
    std::printf("%-12s %8zu  mean %9.1f  p50 %9.1f  p95 %9.1f  p99 %9.1f  p99.9 %9.1f  worst %9.1f us\n",
                what, times.size(), sum / static_cast<double>(times.size()), at(0.5), at(0.95), at(0.99),
                at(0.999), times.back());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench-masks VOCABULARY.gguf [SCHEMAS.json]\n");
        return 2;
    }
    const gguf::File file = gguf::File::open(argv[1]);
    const text::Tokenizer tokenizer = text::Tokenizer::load(file);
    auto start = now();
    auto index = std::make_shared<TokenIndex>(tokenizer, tokenizer.size());
    std::printf("%d tokens, index %.1f ms\n", tokenizer.size(), microseconds_since(start) / 1e3);
    std::ifstream recorded(argc > 2 ? argv[2] : "tests/data/grammar/schemas.json");
    const std::string all{std::istreambuf_iterator<char>(recorded), {}};
    std::vector<double> compiles, firsts, masks_times, advances, cached;
    bool first_of_all = true;
    for (const Json &entry : Json::parse(all)) {
        const Source source{.kind = Source::Kind::Schema, .text = entry["schema"].dump()};
        start = now();
        Machine machine(compile(source));
        compiles.push_back(microseconds_since(start));
        Masks masks(std::move(machine), index);
        start = now();
        masks.mask(masks.start());
        firsts.push_back(microseconds_since(start));
        if (std::exchange(first_of_all, false))
            std::printf("first mask of all %.3f ms (behind the index)\n", firsts.back() / 1e3);
        for (const std::string text : entry["accept"]) {
            StateId state = masks.start();
            for (const TokenId id : tokenizer.encode(text, {.add_special = false, .continues = true})) {
                const size_t known = masks.cached();
                start = now();
                masks.mask(state);
                const double time = microseconds_since(start);
                masks_times.push_back(time);
                if (masks.cached() == known) cached.push_back(time);
                start = now();
                state = masks.advance(state, id);
                advances.push_back(microseconds_since(start));
            }
        }
    }
    report("compile", compiles);
    report("first mask", firsts);
    report("mask", masks_times);
    report("  cached", cached);
    report("advance", advances);
    return 0;
}
