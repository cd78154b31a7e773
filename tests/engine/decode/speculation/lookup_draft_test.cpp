#include "engine/decode/speculation/lookup_draft.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "tests/support/cpu_time.h"
#include "tests/support/random.h"

using namespace runnel::decode;
using runnel::testing::least_seconds;
using runnel::testing::Random;

namespace {

using Text = std::vector<TokenId>;

Text random_text(Random &random, size_t length, uint64_t alphabet) {
    Text text(length);
    for (TokenId &token : text) token = static_cast<TokenId>(random.below(alphabet));
    return text;
}

bool ends_alike(const Text &text, size_t end, size_t length) {
    return std::equal(text.end() - static_cast<std::ptrdiff_t>(length), text.end(),
                      text.begin() + static_cast<std::ptrdiff_t>(end - length));
}

// The longest suffix of the text that also occurs earlier, and the last place where it does.
SuffixIndex::Match by_force(const Text &text) {
    SuffixIndex::Match best;
    for (size_t end = 1; end < text.size(); ++end) {
        size_t length = 0;
        while (length < end && ends_alike(text, end, length + 1)) ++length;
        if (length > 0 && static_cast<int32_t>(length) >= best.length)
            best = {static_cast<int32_t>(length), static_cast<int32_t>(end)};
    }
    return best;
}

// A text as a model edits it: `original` with about every `every`-th token replaced, left out, or
// followed by a new one.
Text edited(const Text &original, uint64_t every, Random &random, uint64_t alphabet) {
    Text text;
    for (const TokenId token : original) {
        if (random.below(every) > 0) {
            text.push_back(token);
            continue;
        }
        const uint64_t kind = random.below(3);
        if (kind == 1) continue;
        if (kind == 2) text.push_back(token);
        text.push_back(static_cast<TokenId>(random.below(alphabet)));
    }
    return text;
}

struct Drafted {
    size_t passes = 0, drafted = 0, accepted = 0;
};

// Continues `prompt` with `answer`; every pass drafts at most `most` tokens.
Drafted play(const Text &prompt, const Text &answer, int32_t most, float least_probability) {
    LookupDraft source;
    Text text = prompt;
    text.push_back(answer.at(0));
    Drafted out;
    for (size_t done = 1; done < answer.size();) {
        const Draft draft = source.draft(text, most, least_probability);
        REQUIRE(draft.tokens.size() == draft.probabilities.size());
        REQUIRE(draft.tokens.size() <= static_cast<size_t>(most));
        size_t right = 0;
        while (right < draft.tokens.size() && done + right < answer.size() &&
               draft.tokens[right] == answer[done + right])
            ++right;
        const size_t taken = std::min(right + 1, answer.size() - done);
        text.insert(text.end(), answer.begin() + static_cast<std::ptrdiff_t>(done),
                    answer.begin() + static_cast<std::ptrdiff_t>(done + taken));
        done += taken;
        ++out.passes;
        out.drafted += draft.tokens.size();
        out.accepted += right;
    }
    return out;
}

}  // namespace

TEST_CASE("suffix index: the longest suffix seen before, at any time of any text") {
    for (uint64_t seed = 0; seed < 300; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const Text whole = seed % 3 == 0 ? edited(random_text(random, 70, 5), 9, random, 5)
                                         : random_text(random, 120, 1 + random.below(8));
        SuffixIndex index;
        Text text;
        for (const TokenId token : whole) {
            text.push_back(token);
            index.append(token);
            const SuffixIndex::Match got = index.match(), expected = by_force(text);
            REQUIRE(index.size() == text.size());
            REQUIRE(got.length == expected.length);
            if (got.length == 0) continue;
            REQUIRE(got.end < static_cast<int32_t>(text.size()));
            REQUIRE(ends_alike(text, static_cast<size_t>(got.end), static_cast<size_t>(got.length)));
            REQUIRE(got.end == expected.end);  // no text here repeats 32 tokens or more
        }
    }
}

TEST_CASE("suffix index: texts of one repeated token and tokens of any id are found") {
    SuffixIndex index;
    for (int32_t i = 1; i <= 5000; ++i) {
        index.append(INT32_MAX);
        REQUIRE(index.match().length == i - 1);
        if (i > 1) REQUIRE(index.match().end == i - 1);
    }
    index.append(INT32_MIN);
    CHECK(index.match().length == 0);
    index.append(INT32_MAX);
    CHECK(index.match().length == 1);
}

TEST_CASE("lookup: continues as the text did, in a loop") {
    LookupDraft source;
    CHECK(source.draft(Text{}, 8, 0).tokens.empty());
    CHECK(source.draft(Text{1, 2, 3, 4, 5}, 8, 0).tokens.empty());
    CHECK(source.draft(Text{1, 2, 3, 4, 5, 1, 2}, 3, 0).tokens == Text{3, 4, 5});
    CHECK(source.draft(Text{1, 2, 3, 4, 5, 1, 2}, 0, 0).tokens.empty());
    CHECK(source.draft(Text{7, 8, 9, 7, 8}, 8, 0).tokens == Text{9, 7, 8, 9, 7, 8, 9, 7});
    CHECK(source.draft(Text{7, 8, 9, 7, 8, 9}, 2, 0).tokens == Text{7, 8});
    CHECK(source.draft(Text{7, 8, 9, 7, 8}, 8, 1.1f).tokens.empty());  // no probability reaches 1.1
    CHECK(source.name() == "lookup");
}

TEST_CASE("lookup: after an undo or a shift, drafts as if it had never seen the removed text") {
    for (uint64_t seed = 0; seed < 100; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        LookupDraft source;
        Text text = random_text(random, 300 + random.below(300), 4);
        for (int step = 0; step < 10; ++step) {
            const auto place = static_cast<std::ptrdiff_t>(random.below(text.size()));
            if (random.below(2) == 0)
                text.resize(static_cast<size_t>(place) + 1);
            else  // a context shift drops a piece of the text
                text.erase(text.begin() + place / 2, text.begin() + place);
            const Text more = random_text(random, 65 + random.below(100), 4);
            text.insert(text.end(), more.begin(), more.end());
            LookupDraft fresh;
            REQUIRE(source.draft(text, 12, 0).tokens == fresh.draft(text, 12, 0).tokens);
        }
    }
}

TEST_CASE("lookup: drafting of an edited copy resumes right after every edit") {
    for (uint64_t seed = 0; seed < 10; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        // Half of the tokens are very frequent, as in a language.
        Text original = random_text(random, 2000, 3000);
        for (TokenId &token : original)
            if (random.below(2) == 0) token %= 20;
        const Text answer = edited(original, 25, random, 3000);
        const Drafted out = play(original, answer, 16, 0.2f);
        CAPTURE(out.passes);
        CAPTURE(out.drafted);
        // Long suffixes without trails would give some 7 tokens per pass.
        CHECK(static_cast<double>(answer.size()) / static_cast<double>(out.passes) > 9);
        CHECK(static_cast<double>(out.accepted) > 0.55 * static_cast<double>(out.drafted));
    }
}

TEST_CASE("lookup: text without repetitions is not drafted") {
    Random random(1);
    const Text prompt = random_text(random, 1000, 30), answer = random_text(random, 2000, 30);
    // Matches of two and three tokens are frequent and useless; the source learns that.
    const Drafted out = play(prompt, answer, 16, 0.3f);
    CHECK(out.drafted < answer.size() / 4);
}

TEST_CASE("lookup: reported probabilities are right") {
    // A text of 40 tokens, repeated, in which one token in `every` is replaced by another.
    for (const uint64_t every : {5u, 20u}) {
        Random random(every);
        const Text period = random_text(random, 40, 1000);
        Text text;
        for (int i = 0; i < 100; ++i)
            for (const TokenId token : period)
                text.push_back(random.below(every) == 0 ? static_cast<TokenId>(random.below(1000)) : token);
        LookupDraft source;
        double said = 0, right = 0;
        for (size_t n = 1000; n + 1 < text.size(); ++n) {
            const Draft draft = source.draft(std::span(text).first(n), 1, 0);
            if (draft.tokens.empty()) continue;
            said += draft.probabilities[0];
            right += draft.tokens[0] == text[n] ? 1 : 0;
        }
        CAPTURE(every);
        CAPTURE(said);
        CHECK(right > 500);
        CHECK(said == doctest::Approx(right).epsilon(0.06));
    }
}

TEST_CASE("lookup: when a text grows, only its new end is read") {
    Random random(1);
    const Text original = random_text(random, 5000, 30000);
    Text text = original;
    LookupDraft source;
    source.draft(text, 16, 0);
    // Overwrites the tokens that were already read, except the last ones, by which the source recognizes the
    // text.
    std::fill(text.begin(), text.end() - 300, -1);
    for (size_t i = 100; i < 200; ++i) {
        text.push_back(original[i]);
        const Draft draft = source.draft(text, 4, 0);
        if (i < 110) continue;
        REQUIRE(draft.tokens.size() == 4);
        REQUIRE(std::equal(draft.tokens.begin(), draft.tokens.end(),
                           original.begin() + static_cast<std::ptrdiff_t>(i) + 1));
    }
    CHECK(LookupDraft().draft(text, 4, 0).tokens.empty());
}

namespace {

// The second half repeats the first, except for some tokens.
Text half_copied(size_t length) {
    Random random(1);
    Text text = random_text(random, length / 2, 30000);
    const Text copy = edited(text, 50, random, 30000);
    text.insert(text.end(), copy.begin(), copy.end());
    text.resize(length, 1);
    return text;
}

Text of_one_token(size_t length) {
    return Text(length, 7);
}

// A Fibonacci word: much repeats, but without a period.
Text fibonacci(size_t length) {
    Text text{1}, before{2};
    while (text.size() < length) {
        const Text last = text;
        text.insert(text.end(), before.begin(), before.end());
        before = last;
    }
    text.resize(length);
    return text;
}

}  // namespace

TEST_CASE("lookup: a token of a long text costs no more work than one of a short text") {
    constexpr size_t kShort = 1 << 10, kLong = 1 << 18, kChunk = 32;
    for (const auto make : {half_copied, of_one_token, fibonacci}) {
        const auto seconds_at = [&](size_t length) {  // for a chunk near the end, token by token
            const Text text = make(length);
            size_t n = length - 8 * kChunk;
            LookupDraft source;
            source.draft(std::span(text).first(n), 16, 0.2f);
            return least_seconds([&] {
                for (const size_t end = n + kChunk; n < end;)
                    source.draft(std::span(text).first(++n), 16, 0.2f);
            });
        };
        // Cache misses cost a few times as much; work that grows with the text would cost 256 times as much.
        CHECK(seconds_at(kLong) < 64 * seconds_at(kShort));
    }
}
