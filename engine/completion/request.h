// A request: the input, the sampling settings and the limits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/completion/answer.h"
#include "engine/completion/written_answer.h"
#include "engine/decode/sampler.h"
#include "engine/grammar/source.h"
#include "engine/text/chat_template.h"
#include "engine/text/tool_calls/tools.h"

namespace runnel::completion {

using RequestId = uint64_t;
// Names a sequence that a queue keeps after a request.
using SequenceHandle = uint64_t;
inline constexpr SequenceHandle kNoSequence = 0;

// Text to complete, without a chat template. With a suffix, the answer is the text between the two.
struct RawText {
    std::string text;
    std::optional<std::string> suffix = {};
};
// A conversation; the answer is its next turn.
struct Messages {
    std::vector<text::Message> turns;
    std::shared_ptr<const text::ToolUse> tools =
        {};  // tools that may be called; null: none, except what the template says
    std::vector<WrittenAnswer> written = {};  // answers among the turns whose tokens are known
};
// Token ids to complete.
struct Tokens {
    std::vector<TokenId> ids;
    size_t fixed = 0;  // leading tokens that OverflowPolicy keeps
};

// For a prompt or an answer that exceeds the context. Error refuses the prompt or ends the answer; Shift
// drops the oldest tokens after the system prompt; DropMiddle keeps the beginning and the end.
enum class OverflowPolicy { Error, Shift, DropMiddle };

struct Request {
    std::variant<RawText, Messages, Tokens> input = {};
    decode::SamplingOptions sampling = {};
    uint32_t stream = 0;  // of the sampler's noise: each stream gives another answer with the same seed
    Limits limits = {};
    // The grammar of the answer after its reasoning. limits.ignore_end has no effect then.
    std::optional<grammar::Source> constraint = {};
    // How JSON is written in the arguments of forced tool calls, and under the constraint of a batch row.
    grammar::SchemaOptions json_style = {};
    bool close = false;            // at a limit, append the shortest valid ending
    int64_t thinking_budget = -1;  // most tokens of reasoning; < 0: no limit
    OverflowPolicy overflow = OverflowPolicy::Error;
    // Independent answers to one prompt, which is computed once; answer i draws from stream + i.
    int32_t samples = 1;
    // Above 1: beams of a search for the most probable answers (beams.h), with samples == 1. Of the sampling
    // options, only the biases count.
    int32_t beams = 1;
    bool logprobs = false;     // compute Done::log_probability and Done::logprobs
    int32_t top_logprobs = 0;  // number of most probable tokens that Done::logprobs lists at each position
    int32_t prompt_logprobs = -1;  // >= 0: compute Done::prompt_logprobs, with this many alternatives each
    bool drafts = true;            // allow drafts
    bool log_drafts = false;       // report every pass after the first token: Done::draft_passes
    // Reuses the cache of this sequence for the common prefix with the prompt. The handle stays valid.
    SequenceHandle continue_from = kNoSequence;
    bool keep = false;  // keep the answer's sequence; Done::kept is its handle
};

}  // namespace runnel::completion
