// Speed of masks, in CPU time: bench-masks VOCABULARY.gguf [SCHEMAS.json [N [TIMES]]]. For every recorded schema, a
// grammar is compiled and its accepted texts are followed token by token, with a mask for every position. Texts are
// cut into tokens here, or come as lists of tokens ("tokens" instead of "accept"). Counts texts with a token that a
// mask refuses; every N-th mask is compared with trying every token (0: none). TIMES is a file to write: a line per
// text with the microseconds of its masks.
// Exit status 1: a text was refused, or a mask was wrong.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
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

bool equals_naive(Masks &masks, StateId state) {
    TokenIndex &index = masks.index();
    const Bits mask = masks.mask(state);
    for (TokenId id = 0; id < index.rows(); ++id) {
        const bool expected = index.is_end(id) ? masks.accepts(state)
                                               : index.is_sampleable(id) && !index.text(id).empty() &&
                                                     masks.machine().advance(state, index.text(id)) != kDead;
        if (has_bit(mask, id) != expected) {
            std::printf("wrong mask: token %d is %s\n", id, expected ? "not allowed" : "allowed");
            return false;
        }
    }
    return true;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench-masks VOCABULARY.gguf [SCHEMAS.json [N [TIMES]]]\n");
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
    const size_t naive = argc > 3 ? std::stoul(argv[3]) : 0;
    std::ofstream times_file;
    if (argc > 4) times_file.open(argv[4]);
    size_t texts = 0, tokens = 0, refused = 0, compared = 0, wrong = 0;
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
        double first = firsts.back();  // the first mask belongs to the first position
        for (const Json &text : entry[entry.contains("tokens") ? "tokens" : "accept"]) {
            StateId state = masks.start();
            ++texts;
            const auto ids = text.is_string() ? tokenizer.encode(text.get<std::string>(),
                                                                 {.add_special = false, .continues = true})
                                              : text.get<std::vector<TokenId>>();
            for (const TokenId id : ids) {
                const size_t known = masks.cached();
                start = now();
                masks.mask(state);
                const double time = microseconds_since(start);
                masks_times.push_back(time);
                if (times_file.is_open()) times_file << time + std::exchange(first, 0) << ' ';
                if (masks.cached() == known) cached.push_back(time);
                if (naive > 0 && ++tokens % naive == 0) {
                    ++compared;
                    wrong += !equals_naive(masks, state);
                }
                if (!has_bit(masks.mask(state), id)) {
                    std::printf("refused: %s: %s\n", source.text.c_str(), text.dump().c_str());
                    state = kDead;
                    break;
                }
                start = now();
                state = masks.advance(state, id);
                advances.push_back(microseconds_since(start));
            }
            refused += state == kDead || !masks.accepts(state);
            if (times_file.is_open()) times_file << '\n';
        }
    }
    report("compile", compiles);
    report("first mask", firsts);
    report("mask", masks_times);
    report("  cached", cached);
    report("advance", advances);
    std::printf("%zu texts, %zu refused; %zu masks compared with trying every token, %zu wrong\n", texts,
                refused, compared, wrong);
    return refused + wrong > 0;
}
