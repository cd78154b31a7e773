#include "engine/measure/synthetic_draft.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/random.h"

using namespace runnel::decode;
using namespace runnel::measure;
using runnel::testing::Random;

TEST_CASE("synthetic draft: the acceptance rate is as given, and errors do not depend on the draft length") {
    constexpr int32_t kVocab = 100;
    Sampler sampler({}, kVocab);
    Random random(1);
    std::vector<TokenId> truth(20000);
    for (TokenId &token : truth) token = static_cast<TokenId>(random.below(kVocab));
    for (const double acceptance : {0.0, 0.5, 0.8, 0.95, 1.0}) {
        CAPTURE(acceptance);
        SyntheticDraft source(truth, acceptance, 7, kVocab);
        std::vector<TokenId> said;  // the drafted token per position, from drafts of one token
        double right = 0;
        for (size_t n = 1; n < truth.size(); ++n) {
            const Draft draft = source.draft(std::span(truth).first(n), 1, 0, sampler);
            REQUIRE(draft.tokens.size() == 1);
            REQUIRE(draft.probabilities == std::vector<float>{1});
            REQUIRE(draft.tokens[0] >= 0);
            REQUIRE(draft.tokens[0] < kVocab);
            said.push_back(draft.tokens[0]);
            right += draft.tokens[0] == truth[n] ? 1 : 0;
        }
        CHECK(right / static_cast<double>(said.size()) == doctest::Approx(acceptance).epsilon(0.02));
        for (size_t n = 1; n + 9 < truth.size(); n += 97) {
            const Draft draft = source.draft(std::span(truth).first(n), 9, 0, sampler);
            REQUIRE(draft.tokens.size() == 9);
            for (size_t i = 0; i < 9; ++i) REQUIRE(draft.tokens[i] == said[n - 1 + i]);
        }
    }
}

TEST_CASE("synthetic draft: drafts nothing for a different text and past the end") {
    Sampler sampler({}, 10);
    SyntheticDraft source({1, 2, 3, 4}, 1, 0, 10);
    using Text = std::vector<TokenId>;
    CHECK(source.draft(Text{1, 2}, 8, 0, sampler).tokens == Text{3, 4});
    CHECK(source.draft(Text{1, 2}, 0, 0, sampler).tokens.empty());
    CHECK(source.draft(Text{1, 5}, 8, 0, sampler).tokens.empty());
    CHECK(source.draft(Text{}, 8, 0, sampler).tokens.empty());
    CHECK(source.draft(Text{1, 2, 3, 4}, 8, 0, sampler).tokens.empty());
    CHECK(source.draft(Text{1, 2, 3, 4, 4}, 8, 0, sampler).tokens.empty());
}
