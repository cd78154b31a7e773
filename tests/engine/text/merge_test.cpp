// Compares merging in windows with the plain algorithm: search all pairs, merge the best, repeat.
#include "engine/text/merge.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace runnel::text;

namespace {

// Pieces are strings over a small alphabet; a pair of pieces has a rank or does not merge.
struct Table {
    std::map<std::pair<std::string, std::string>, uint32_t> ranks;
    mutable std::map<std::string, TokenId> ids;

    TokenId id(const std::string &piece) const {
        return ids.emplace(piece, static_cast<TokenId>(ids.size())).first->second;
    }

    std::optional<uint32_t> rank(const std::string &left, const std::string &right) const {
        const auto found = ranks.find({left, right});
        if (found == ranks.end()) return std::nullopt;
        return found->second;
    }
};

// Merges combine existing pieces, as in training. `shuffled` gives them random ranks, so that a merge can
// become possible after its rank has passed. Few distinct ranks cause many ties.
Table random_table(std::mt19937 &random, size_t merges, size_t letters, bool shuffled) {
    Table table;
    std::vector<std::string> pieces;
    for (size_t i = 0; i < letters; ++i) pieces.emplace_back(1, static_cast<char>('a' + i));
    for (size_t i = 0; i < merges; ++i) {
        const std::string left = pieces[random() % pieces.size()], right = pieces[random() % pieces.size()];
        if (left.size() + right.size() > 12) continue;
        const auto rank = static_cast<uint32_t>(shuffled ? random() % merges : i);
        if (table.ranks.emplace(std::pair(left, right), rank).second) pieces.push_back(left + right);
    }
    return table;
}

std::vector<std::string> merge_plainly(const Table &table, const std::string &word) {
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    while (true) {
        std::optional<uint32_t> best;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            const auto rank = table.rank(parts[i], parts[i + 1]);
            if (rank && (!best || *rank < *best)) {
                best = rank;
                at = i;
            }
        }
        if (!best) return parts;
        parts[at] += parts[at + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
}

struct TableRules {
    const Table &table;
    const std::string &word;
    const std::vector<Symbol> &symbols;
    std::vector<std::string> &output;
    size_t &merges;  // number of look-ups: the work done
    size_t begin = 0;

    size_t start(size_t from, size_t bytes, std::vector<Symbol> &made) {
        begin = from;
        made.assign(bytes + 1, {1, 1, 0});
        for (size_t i = 0; i < bytes; ++i) made[i].id = table.id(word.substr(from + i, 1));
        made[0].bytes_before = 0;
        return bytes;
    }
    std::string text(size_t at) const { return word.substr(begin + at, symbols[at].bytes); }
    std::optional<Merge> find(size_t left, size_t right) {
        ++merges;
        const auto rank = table.rank(text(left), text(right));
        if (!rank) return std::nullopt;
        return Merge{*rank, table.id(text(left) + text(right))};
    }
    std::optional<uint32_t> lowest_rank_across(size_t at, size_t edge) {
        std::optional<uint32_t> lowest;
        for (size_t bytes = 1; bytes <= 12; ++bytes) {
            const auto rank = table.rank(text(at), word.substr(begin + edge, bytes));
            if (rank && (!lowest || *rank < *lowest)) lowest = rank;
        }
        return lowest;
    }
    std::string_view ahead(size_t edge) const { return std::string_view(word).substr(begin + edge, 12); }
    void emit(size_t edge) {
        for (size_t at = 0; at < edge; at += symbols[at].bytes) output.push_back(text(at));
    }
};

std::vector<std::string> merge_in_windows(const Table &table, const std::string &word, size_t window,
                                          size_t &merges) {
    MergeScratch scratch;
    std::vector<std::string> output;
    merge_word(scratch, word.size(), TableRules{table, word, scratch.symbols, output, merges}, window);
    return output;
}

std::string random_word(std::mt19937 &random, size_t length, size_t letters) {
    std::string word;
    while (word.size() < length)
        word.append(random() % 4 ? 1 : random() % 20, static_cast<char>('a' + random() % letters));
    return word;
}

}  // namespace

TEST_CASE("merging in windows gives what merging the whole word gives") {
    std::mt19937 random(8);
    for (int round = 0; round < 400; ++round) {
        const size_t letters = 1 + random() % 4;
        const Table table = random_table(random, 1 + random() % 60, letters, round % 2);
        const std::string word = random_word(random, 1 + random() % 200, letters);
        const auto expected = merge_plainly(table, word);
        for (const size_t window : {1, 2, 7, 16, 50, 1000}) {
            CAPTURE(round);
            CAPTURE(window);
            CAPTURE(word);
            size_t merges = 0;
            CHECK(merge_in_windows(table, word, window, merges) == expected);
        }
    }
}

TEST_CASE("the work of merging is linear in the word's length") {
    std::mt19937 random(9);
    for (const bool shuffled : {false, true}) {
        for (const size_t letters : {1, 2, 8}) {
            const Table table = random_table(random, 60, letters, shuffled);
            for (const size_t window : {64, 1024, 1 << 20}) {
                CAPTURE(letters);
                CAPTURE(window);
                const std::string word = random_word(random, 20000, letters);
                size_t merges = 0;
                merge_in_windows(table, word, window, merges);
                CHECK(merges < 12 * word.size());  // 3 per byte, and again for windows that are tried twice
            }
        }
    }
}
