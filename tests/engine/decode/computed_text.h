// A text that an engine computes in chunks, with a roll-back and a fork on the way.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/scheduler.h"
#include "engine/decode/single_sequence.h"

namespace runnel::decode {

// Logits of a text fed in two chunks, the second after a roll-back, the greedy tokens that follow, and the logits after
// these.
struct ComputedText {
    std::vector<float> logits;
    std::vector<text::TokenId> greedy;
    std::vector<float> last;
};

inline ComputedText compute(Engine &engine, int count = 4) {
    ComputedText result;
    SingleSequence session(engine.executor());
    std::vector<text::TokenId> prompt;
    for (text::TokenId i = 0; i < 37; ++i) prompt.push_back(1 + i * i * 7 % 290);
    REQUIRE(session.feed(prompt));
    session.truncate(29);
    REQUIRE(session.feed(std::span(prompt).subspan(29)));
    // A fork with another continuation does not change the sequence it was forked from.
    ScheduledSequence fork(session.sequence().fork());
    Scheduler scheduler(engine.executor(), {.parallel = 1});
    scheduler.add(fork);
    fork.append(std::vector<text::TokenId>{5, 6, 7});
    while (fork.due()) REQUIRE(scheduler.step());
    result.logits.assign(session.logits().begin(), session.logits().end());
    for (int i = 0; i < count; ++i) {
        const auto logits = session.logits();
        result.greedy.push_back(
            static_cast<text::TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
        REQUIRE(session.feed(std::span(result.greedy).last(1)));
    }
    result.last.assign(session.logits().begin(), session.logits().end());
    return result;
}

}  // namespace runnel::decode
