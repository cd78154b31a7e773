// What a CompletionQueue reports: progress, pieces of text, and one end for every answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/completion/request.h"
#include "engine/decode/error.h"
#include "engine/decode/speculation/speculator.h"

namespace runnel::completion {

// A part of the prompt was computed.
struct Prefill {
    RequestId id;
    int64_t done, all;   // tokens of the prompt; done == all: the first token comes with this step
    int64_t from_cache;  // of `done`
    int64_t left_out;    // tokens that did not fit the context and are not part of `all`
};

enum class Channel { Answer, Reasoning };

// A token and the text that is certain with it: possibly empty, in whole UTF-8 characters, bytes that can be
// none replaced by U+FFFD.
struct Piece {
    RequestId id;
    int32_t sample;
    Channel channel;
    std::string text;
    TokenId token;  // kNoToken for more text of the token before
};

struct Usage {
    size_t prompt_tokens = 0;
    size_t completion_tokens = 0;
    int64_t left_out = 0;   // tokens of the prompt that did not fit the context
    int64_t forgotten = 0;  // tokens that were dropped later, to go on in a full context
};

struct Timings {
    double queued_seconds = 0;       // from submit() to the first pass with a part of it
    double first_token_seconds = 0;  // from submit() to the first token
    double prefill_seconds = 0;      // from its first pass to the end of the prompt
    int64_t prefill_tokens = 0;      // computed, those included that were computed again; others were cached
    int64_t decode_tokens = 0;       // sampled after the first one
    double decode_seconds = 0;       // the queue's time for those
    // Wall time between tokens, in seconds: decode_tokens of them, 0 for a token of the same pass.
    std::vector<float> token_seconds = {};

    double prefill_rate() const {
        return prefill_seconds > 0 ? static_cast<double>(prefill_tokens) / prefill_seconds : 0;
    }
    double decode_rate() const {
        return decode_seconds > 0 ? static_cast<double>(decode_tokens) / decode_seconds : 0;
    }
};

// The end of an answer, whatever its cause.
struct Done {
    RequestId id = 0;
    int32_t sample = 0;
    FinishReason reason = FinishReason::Stop;
    bool context_full = false;  // why the reason is Length
    std::string error = {};     // not empty: there is no answer, or no more of it, and this is why
    decode::DecodeError::Kind kind = decode::DecodeError::Kind::BadInput;  // of that error
    std::vector<TokenId> tokens = {};  // of the answer, without the one that ended it
    // Of all tokens, the one that ended it included, in the model's own distribution (before sampling).
    double log_probability = 0;
    double score = 0;  // of a beam: the mean of a token
    Usage usage = {};
    Timings timings = {};
    std::optional<decode::SpeculationCounts> speculation = {};  // none without drafts
    std::optional<bool> complete = {};  // whether the text is all that its constraint wants; none without one
    SequenceHandle kept = kNoSequence;
};

using Event = std::variant<Prefill, Piece, Done>;

}  // namespace runnel::completion
