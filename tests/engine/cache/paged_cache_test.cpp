// Tests the paged cache against a plain model of it: a sequence is a list of tokens, a block the list of
// tokens whose K and V it holds.
#include "engine/cache/paged_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

using namespace runnel::cache;
using runnel::kernels::BlockCopy;

namespace {

constexpr BlockKey kRoot{1, 2};
using Tokens = std::vector<int32_t>;

// The content of a cell on a device: K and V depend on the whole text up to the cell, so the cell stores that.
class Device {
  public:
    Device(PagedCache &cache, std::vector<Reach> reaches) : cache_(cache), reaches_(std::move(reaches)) {
        for (size_t g = 0; g < cache.groups(); ++g)
            cells_.emplace_back(static_cast<size_t>(cache.pool(g).size()) * kBlockTokens);
    }

    // False if there are not enough blocks.
    bool append(SequenceCache &sequence, const Tokens &tokens) {
        const int32_t past = sequence.length();
        std::vector<std::vector<BlockCopy>> copies(cache_.groups());
        if (!cache_.grow(sequence, tokens, copies)) return false;
        for (size_t g = 0; g < copies.size(); ++g)
            for (const BlockCopy &copy : copies[g])
                std::copy_n(cells_[g].begin() + copy.from * kBlockTokens, kBlockTokens,
                            cells_[g].begin() + copy.to * kBlockTokens);
        const std::vector<uint64_t> hashes = prefix_hashes(sequence);
        for (int32_t c = past; c < sequence.length(); ++c)
            for (size_t g = 0; g < cells_.size(); ++g) cell(sequence, g, c) = hashes[static_cast<size_t>(c)];
        cache_.publish(sequence);
        return true;
    }

    // Checks that every cell visible to the next token has the content that its text requires.
    void check(const SequenceCache &sequence) {
        const std::vector<uint64_t> expected = prefix_hashes(sequence);
        int wrong = 0;
        for (size_t g = 0; g < cells_.size(); ++g)
            for (int32_t c = 0; c < sequence.length(); ++c) {
                const Reach reach = reaches_[g];
                if (reach.window > 0 && c >= reach.sinks && c <= sequence.length() - reach.window) continue;
                if (sequence.table(g)[static_cast<size_t>(c / kBlockTokens)] == kNoBlock ||
                    cell(sequence, g, c) != expected[static_cast<size_t>(c)])
                    ++wrong;
            }
        REQUIRE(wrong == 0);
    }

  private:
    static std::vector<uint64_t> prefix_hashes(const SequenceCache &sequence) {
        std::vector<uint64_t> hashes;
        uint64_t hash = 7;
        for (const int32_t token : sequence.tokens())
            hashes.push_back(hash = (hash ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15 + 1);
        return hashes;
    }
    uint64_t &cell(const SequenceCache &sequence, size_t group, int32_t c) {
        const BlockId block = sequence.table(group)[static_cast<size_t>(c / kBlockTokens)];
        return cells_[group].at(static_cast<size_t>(block * kBlockTokens + c % kBlockTokens));
    }

    PagedCache &cache_;
    std::vector<Reach> reaches_;
    std::vector<std::vector<uint64_t>> cells_;
};

// Few different tokens in long runs, so that random texts share prefixes.
Tokens random_text(std::mt19937 &random, size_t count) {
    Tokens tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = i % 40 == 0 ? static_cast<int32_t>(random() % 2) : 5;
    return tokens;
}

std::vector<GroupLayout> layouts_of(const std::vector<Reach> &reaches, int32_t blocks) {
    std::vector<GroupLayout> layouts;
    for (const Reach &reach : reaches) layouts.push_back({blocks, reach});
    return layouts;
}

}  // namespace

TEST_CASE("paged cache: random growth, forks, roll-backs and sharing never lose or mix up a cell") {
    const std::vector<std::vector<Reach>> kinds = {{{}},          {{}, {}},          {{70, 0}},
                                                   {{}, {33, 0}}, {{1, 0}, {64, 5}}, {{90, 40}, {}}};
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const std::vector<Reach> &reaches = kinds[seed % kinds.size()];
        PagedCache cache(layouts_of(reaches, 24), static_cast<int32_t>(random() % 50), kRoot);
        Device device(cache, reaches);
        std::vector<SequenceCache> sequences;
        for (int step = 0; step < 150; ++step) {
            const size_t i = sequences.empty() ? 0 : random() % sequences.size();
            const auto what = random() % 10;
            if (sequences.empty() || (what == 0 && sequences.size() < 6)) {
                sequences.push_back(cache.new_sequence());
                const Tokens text = random_text(random, 150);
                const int32_t known = cache.attach(sequences.back(), text);
                CHECK(known < 150);
                CHECK(std::equal(sequences.back().tokens().begin(), sequences.back().tokens().end(),
                                 text.begin()));
            } else if (what == 4 && i % 2 == 0) {
                Tokens text = sequences[i].tokens();
                const Tokens more = random_text(random, 100);
                text.insert(text.end(), more.begin(), more.end());
                const int32_t length = sequences[i].length();
                const int32_t attached = cache.attach(sequences[i], text);
                CHECK(attached == sequences[i].length() - length);
                CHECK(std::equal(sequences[i].tokens().begin(), sequences[i].tokens().end(), text.begin()));
            } else if (what == 1 && sequences.size() < 6) {
                sequences.push_back(cache.fork(sequences[i]));
            } else if (what == 2) {
                sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(i));
            } else if (what == 3) {
                const int32_t length =
                    static_cast<int32_t>(random() % static_cast<size_t>(sequences[i].length() + 1));
                if (sequences[i].truncatable(length) == length) sequences[i].truncate(length);
            } else {
                const Tokens before = sequences[i].tokens();
                const Tokens more = random_text(random, random() % 60);
                const int32_t length = static_cast<int32_t>(before.size() + more.size());
                bool fits = true;
                for (size_t g = 0; g < cache.groups(); ++g)
                    fits = fits && sequences[i].blocks_to_hold(g, length, 60) <=
                                       cache.pool(g).free_blocks() + cache.pool(g).idle_blocks();
                const bool grown = device.append(sequences[i], more);
                CHECK((grown || !fits));
                CHECK(sequences[i].length() ==
                      static_cast<int32_t>(before.size() + (grown ? more.size() : 0)));
            }
            for (const SequenceCache &sequence : sequences) device.check(sequence);
            for (size_t g = 0; g < cache.groups(); ++g) {
                std::map<BlockId, int32_t> held;
                for (const SequenceCache &sequence : sequences)
                    for (const BlockId block : sequence.table(g))
                        if (block != kNoBlock) ++held[block];
                REQUIRE(std::ranges::all_of(held, [&](const auto &entry) {
                    return cache.pool(g).references(entry.first) == entry.second;
                }));
                REQUIRE(static_cast<int32_t>(held.size()) + cache.pool(g).free_blocks() +
                            cache.pool(g).idle_blocks() ==
                        cache.pool(g).size());
            }
        }
    }
}

TEST_CASE(
    "paged cache: on several devices, a range of cells is on one of them, and one text can fill all of "
    "them") {
    for (uint32_t seed = 0; seed < 8; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const int32_t shares = 2 + static_cast<int32_t>(seed % 3), blocks = 3 * kRangeBlocks * shares;
        const std::vector<GroupLayout> layouts = {{blocks, {}, shares}, {60, {100, 0}}};
        PagedCache cache(layouts, 20, kRoot);
        Device device(cache, {{}, {100, 0}});
        std::vector<SequenceCache> sequences;
        const auto check = [&](const SequenceCache &sequence) {
            device.check(sequence);
            const auto table = sequence.table(0);
            for (size_t b = 1; b < table.size(); ++b)
                REQUIRE((b % size_t{kRangeBlocks} == 0 ||
                         cache.pool(0).share_of(table[b]) == cache.pool(0).share_of(table[b - 1])));
        };
        for (int step = 0; step < 80; ++step) {
            const size_t i = sequences.empty() ? 0 : random() % sequences.size();
            const auto what = random() % 8;
            if (sequences.empty() || (what == 0 && sequences.size() < 4)) {
                sequences.push_back(cache.new_sequence());
                cache.attach(sequences.back(), random_text(random, 1200));
            } else if (what == 1 && sequences.size() < 4) {
                sequences.push_back(cache.fork(sequences[i]));
            } else if (what == 2) {
                sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(i));
            } else if (what == 3) {
                const auto length =
                    static_cast<int32_t>(random() % static_cast<size_t>(sequences[i].length() + 1));
                if (sequences[i].truncatable(length) == length) sequences[i].truncate(length);
            } else if (sequences[i].length() < 1000) {
                static_cast<void>(device.append(sequences[i], random_text(random, random() % 300)));
            }
            for (const SequenceCache &sequence : sequences) check(sequence);
        }
        sequences.clear();
        SequenceCache alone = cache.new_sequence();
        while (alone.length() < blocks * kBlockTokens) REQUIRE(device.append(alone, Tokens(64, 7)));
        check(alone);
        CHECK(cache.pool(0).free_blocks() + cache.pool(0).idle_blocks() == 0);
    }
}

TEST_CASE("paged cache: forks share all blocks, and a write copies one") {
    PagedCache cache(layouts_of({{}}, 20), 0, kRoot);
    Device device(cache, {{}});
    SequenceCache first = cache.new_sequence();
    REQUIRE(device.append(first, Tokens(100, 3)));
    std::vector<SequenceCache> samples;
    for (int i = 0; i < 5; ++i) samples.push_back(cache.fork(first));
    CHECK(cache.pool(0).free_blocks() == 16);
    for (int i = 0; i < 5; ++i) REQUIRE(device.append(samples[static_cast<size_t>(i)], {10 + i}));
    CHECK(cache.pool(0).free_blocks() == 11);
    CHECK(cache.statistics().copied_blocks == 5);
    for (const SequenceCache &sample : samples) device.check(sample);
    device.check(first);
}

TEST_CASE(
    "paged cache: a text shares the blocks of an earlier one with the same prefix, even after that has "
    "ended") {
    PagedCache cache(layouts_of({{}}, 20), 0, kRoot);
    Device device(cache, {{}});
    std::mt19937 random(3);
    Tokens header(100);
    for (int32_t &t : header) t = static_cast<int32_t>(random());
    {
        SequenceCache first = cache.new_sequence();
        CHECK(cache.attach(first, header) == 0);
        REQUIRE(device.append(first, header));
    }
    CHECK(cache.pool(0).free_blocks() == 17);
    CHECK(cache.pool(0).idle_blocks() == 3);
    SequenceCache same = cache.new_sequence();
    CHECK(cache.attach(same, header) == 96);
    device.check(same);
    SequenceCache exact = cache.new_sequence();  // whole blocks only, and one token is left to compute
    CHECK(cache.attach(exact, std::span(header).first(64)) == 32);
    header[40] ^= 1;
    SequenceCache other = cache.new_sequence();
    CHECK(cache.attach(other, header) == 32);
    CHECK(cache.statistics().reused_tokens == 96 + 32 + 32);
}

TEST_CASE("paged cache: two sequences that compute the same text at the same time keep one copy of it") {
    PagedCache cache(layouts_of({{}, {40, 0}}, 30), 8, kRoot);
    Device device(cache, {{}, {40, 0}});
    SequenceCache a = cache.new_sequence(), b = cache.new_sequence();
    const Tokens text(64, 9);
    REQUIRE(device.append(a, text));
    REQUIRE(device.append(b, text));
    CHECK(std::ranges::equal(a.table(0), b.table(0)));
    CHECK(cache.pool(0).free_blocks() == 28);
    device.check(b);
}

TEST_CASE("paged cache: kept blocks are evicted, the last blocks of the least recently used texts first") {
    PagedCache cache(layouts_of({{}}, 8), 0, kRoot);
    Device device(cache, {{}});
    const auto text = [](int32_t token) { return Tokens(128, token); };
    for (int32_t token : {1, 2}) {
        SequenceCache sequence = cache.new_sequence();
        REQUIRE(device.append(sequence, text(token)));
    }
    CHECK(cache.pool(0).idle_blocks() == 8);
    {
        SequenceCache again = cache.new_sequence();
        CHECK(cache.attach(again, text(1)) == 96);  // the fourth block holds the token to compute
    }
    SequenceCache third = cache.new_sequence();
    REQUIRE(device.append(third, Tokens(64, 3)));
    CHECK(cache.statistics().evicted_blocks == 2);
    SequenceCache one = cache.new_sequence(), two = cache.new_sequence();
    CHECK(cache.attach(one, text(1)) == 96);
    CHECK(cache.attach(two, text(2)) == 96);
    SequenceCache fourth = cache.new_sequence();
    CHECK_FALSE(device.append(fourth, Tokens(64, 4)));  // all others are held
    CHECK(fourth.length() == 0);
}

TEST_CASE("paged cache: a truncated sequence writes to its kept block when no block is free") {
    PagedCache cache(layouts_of({{}}, 2), 0, kRoot);
    Device device(cache, {{}});
    SequenceCache sequence = cache.new_sequence();
    REQUIRE(device.append(sequence, Tokens(64, 1)));
    sequence.truncate(20);
    REQUIRE(device.append(sequence, Tokens(44, 2)));
    device.check(sequence);
    CHECK(cache.statistics().copied_blocks == 0);
    // If another sequence holds the block, it cannot be given up.
    sequence.truncate(32);
    SequenceCache other = cache.fork(sequence);
    other.truncate(20);
    REQUIRE(device.append(sequence, Tokens(32, 3)));
    CHECK_FALSE(device.append(other, Tokens(1, 4)));
    device.check(sequence);
}

TEST_CASE("paged cache: with a window, memory does not grow with the text") {
    const std::vector<Reach> reaches = {{100, 0}, {50, 40}};
    const int32_t slack = 64;
    PagedCache cache(layouts_of(reaches, 40), slack, kRoot);
    Device device(cache, reaches);
    SequenceCache sequence = cache.new_sequence();
    int32_t token = 0;
    for (int step = 0; step < 200; ++step) {
        Tokens chunk(25);
        for (int32_t &t : chunk) t = token++;
        REQUIRE(device.append(sequence, chunk));
        for (size_t g = 0; g < 2; ++g) {
            const auto table = sequence.table(g);
            const auto held =
                std::count_if(table.begin(), table.end(), [](BlockId b) { return b != kNoBlock; });
            CHECK(held <= (reaches[g].window + slack + 25) / kBlockTokens + 2 + 2);
        }
    }
    CHECK(sequence.length() == 5000);
    for (int32_t back = 1; back <= slack; back += 7) CHECK(sequence.truncatable(5000 - back) == 5000 - back);
    CHECK(sequence.truncatable(2000) == 0);
    CHECK(sequence.truncatable(0) == 0);
    sequence.truncate(5000 - slack);
    device.check(sequence);
    SequenceCache same =
        cache.new_sequence();  // blocks outside the window are still known until they are reused
    Tokens text = sequence.tokens();
    text.push_back(-1);
    CHECK(cache.attach(same, text) == 4928);
    device.check(same);
}

// Realistic lengths: most are short, some long. Contiguous reservation would take the longest for every sequence.
TEST_CASE("paged cache: a trace of 1,000 sequences of mixed length wastes less than 4% of what it takes") {
    const uint32_t seed = 4;
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::lognormal_distribution<double> length(6.6, 0.8);
    constexpr int32_t kContext = 4096, kTogether = 32;
    PagedCache cache(layouts_of({{}}, kContext * kTogether / kBlockTokens), 0, kRoot);
    std::vector<SequenceCache> running;
    std::vector<int32_t> ends;
    int64_t used = 0, taken = 0, reserved = 0;
    int32_t started = 0, finished = 0;
    std::vector<std::vector<BlockCopy>> copies(1);
    while (finished < 1000) {
        while (running.size() < kTogether && started < 1000) {
            ++started;
            running.push_back(cache.new_sequence());
            ends.push_back(std::clamp(static_cast<int32_t>(length(random)), 40, kContext));
        }
        for (size_t i = 0; i < running.size();) {
            const int32_t count =
                std::min<int32_t>(static_cast<int32_t>(random() % 300), ends[i] - running[i].length());
            Tokens tokens(static_cast<size_t>(count));
            for (int32_t &t : tokens) t = static_cast<int32_t>(random());
            REQUIRE(cache.grow(running[i], tokens, copies));
            cache.publish(running[i]);
            if (running[i].length() < ends[i]) {
                ++i;
                continue;
            }
            ++finished;
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
            ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
        }
        for (const SequenceCache &sequence : running) used += sequence.length();
        const BlockPool &pool = cache.pool(0);
        taken += int64_t{pool.size() - pool.free_blocks() - pool.idle_blocks()} * kBlockTokens;
        reserved += static_cast<int64_t>(running.size()) * kContext;
    }
    const double waste = 1 - double(used) / double(taken), reservation = 1 - double(used) / double(reserved);
    MESSAGE("waste: " << 100 * waste << "% in blocks, " << 100 * reservation << "% with reservation");
    CHECK(waste < 0.04);
    CHECK(reservation > 0.6);
    CHECK(cache.pool(0).free_blocks() + cache.pool(0).idle_blocks() == cache.pool(0).size());
}
