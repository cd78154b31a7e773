// Events of a CompletionQueue: prefill progress, pieces of text, and one Done per answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/completion/request.h"
#include "engine/decode/error.h"
#include "engine/decode/log_probabilities.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/text/tool_calls/tools.h"

namespace runnel::completion {

// A part of the prompt was computed.
struct Prefill {
    RequestId id;
    int64_t done, all;   // tokens of the prompt; done == all: this step samples the first token
    int64_t from_cache;  // those of `done` that were cached
    int64_t left_out;    // tokens dropped to fit the context; not in `all`
};

enum class Channel { Answer, Reasoning };

// A token and the text that it completes: possibly empty, in whole UTF-8 characters, with U+FFFD for invalid
// bytes.
struct Piece {
    RequestId id;
    int32_t sample;
    Channel channel;
    std::string text;
    TokenId token;  // kNoToken: more text of the previous token
};

struct Usage {
    size_t prompt_tokens = 0;
    size_t completion_tokens = 0;
    int64_t left_out = 0;   // tokens of the prompt dropped to fit the context
    int64_t forgotten = 0;  // tokens dropped later by context shifts
};

struct Timings {
    double queued_seconds = 0;       // from submit() to its first pass
    double first_token_seconds = 0;  // from submit() to the first token
    double prefill_seconds = 0;      // from its first pass to the last pass of the prompt
    int64_t prefill_tokens = 0;      // computed, recomputed ones included; others were cached
    int64_t decode_tokens = 0;       // sampled after the first
    double decode_seconds = 0;       // time in step() for those
    // Seconds from each token to the next: decode_tokens values, about 0 between tokens of one pass.
    std::vector<float> token_seconds = {};

    double prefill_rate() const {
        return prefill_seconds > 0 ? static_cast<double>(prefill_tokens) / prefill_seconds : 0;
    }
    double decode_rate() const {
        return decode_seconds > 0 ? static_cast<double>(decode_tokens) / decode_seconds : 0;
    }
};

// The end of an answer, for any reason.
struct Done {
    RequestId id = 0;
    int32_t sample = 0;
    FinishReason reason = FinishReason::Stop;
    bool context_full = false;  // the reason is Length because the context is full
    std::string error = {};     // why the answer failed or broke off; empty: it did not
    decode::DecodeError::Kind kind = decode::DecodeError::Kind::BadInput;  // of that error
    std::vector<TokenId> tokens = {};  // of the answer, without the end token
    // Sum over all tokens, the end token included, in the model's distribution before sampling.
    double log_probability = 0;
    // With Request::logprobs, one entry for each of `tokens`. With Request::prompt_logprobs, one for each token of
    // the prompt from the second on.
    std::vector<decode::TokenLogProbabilities> logprobs = {}, prompt_logprobs = {};
    double score = 0;  // for a beam, the mean log-probability of its tokens
    Usage usage = {};
    Timings timings = {};
    std::optional<decode::SpeculationCounts> speculation = {};  // nullopt without drafts
    std::vector<decode::DraftPass> draft_passes = {};           // under Request::log_drafts
    // Whether the text satisfies its constraint; nullopt without one and for tool choice auto.
    std::optional<bool> complete = {};
    std::vector<text::ToolCall> calls = {};  // tool calls; their text is in no Piece
    std::string note = {};                   // why text that looks like a tool call is not one; usually empty
    SequenceHandle kept = kNoSequence;       // under Request::keep
    WrittenAnswer written = {};              // of a turn, under Request::keep: for Messages::written
};
// "tool_calls" for an answer (a Done or a Reply) that ended with calls, otherwise the name of its reason.
template <class Answered>
std::string_view finish_name(const Answered &answer) {
    return !answer.calls.empty() && answer.reason == FinishReason::Stop ? "tool_calls" : name(answer.reason);
}

using Event = std::variant<Prefill, Piece, Done>;

// Throws the error with which an answer ended, if any.
inline void expect_answer(const Done &done) {
    if (!done.error.empty()) throw decode::DecodeError(done.kind, done.error);
}

}  // namespace runnel::completion
