// What is asked for: an input, how to sample, when to stop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/completion/answer.h"
#include "engine/decode/sampler.h"
#include "engine/grammar/source.h"
#include "engine/text/chat_template.h"

namespace runnel::completion {

using RequestId = uint64_t;
// A sequence that a queue keeps after a request.
using SequenceHandle = uint64_t;
inline constexpr SequenceHandle kNoSequence = 0;

// Completed as it stands.
struct RawText {
    std::string text;
};
// A conversation; the answer is its next turn.
struct Messages {
    std::vector<text::Message> turns;
};
// Completed as they stand.
struct Tokens {
    std::vector<TokenId> ids;
    size_t fixed = 0;  // tokens in front that OverflowPolicy keeps
};

// A prompt or an answer that outgrows the context: an error, or the end of the answer; the oldest tokens
// behind the system prompt go; the middle goes, beginning and end stay.
enum class OverflowPolicy { Error, Shift, DropMiddle };

struct Request {
    std::variant<RawText, Messages, Tokens> input = {};
    decode::SamplingOptions sampling = {};
    uint32_t stream = 0;  // of the sampler's noise: answers of one seed that are to differ
    Limits limits = {};
    // What the answer, behind its reasoning, may be. Ends of generation count then, whatever the limits say.
    std::optional<grammar::Source> constraint = {};
    bool close = false;  // where the limit ends it in the middle, the shortest valid ending is added
    OverflowPolicy overflow = OverflowPolicy::Error;
    // Independent answers to one prompt, which is computed once; answer i draws from stream + i.
    int32_t samples = 1;
    // The most probable answers, found by following so many (beams.h); not beside samples. Sampling options do
    // not count, but for the biases.
    int32_t beams = 1;
    bool logprobs = false;  // Done::log_probability is wanted
    bool drafts = true;     // where the queue has any
    // The prompt continues this sequence, as far as the tokens agree. The handle stays valid.
    SequenceHandle continue_from = kNoSequence;
    bool keep = false;  // Done carries the handle of the answer's sequence
};

}  // namespace runnel::completion
