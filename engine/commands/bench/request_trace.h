// Requests recorded elsewhere, for `bench --trace`: when they arrived, and the tokens of prompts and answers.
//
// CSV with a header, columns in any order, other columns ignored:
//   TIMESTAMP,ContextTokens,GeneratedTokens        Azure's traces of LLM inference; a date with a time, or seconds
//   arrival,prompt_tokens,completion_tokens        seconds; the arrival may be absent, and "max_tokens" present
// JSON, an object per line:
//   {"timestamp", "input_length", "output_length", "hash_ids"}    Mooncake's traces: milliseconds; a hash id stands
//                                                  for 512 tokens and all tokens before them
//   {"prompt_tokens", "completion_tokens"}         answers of `runnel batch`, also in OpenAI's form; those with
//                                                  "error" are left out; may have "arrival" and "max_tokens"
//   {"prompt", "max_tokens"}                       requests for `runnel batch`: an answer has max_tokens tokens
// Without arrivals, all requests are there from the beginning.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::commands {

struct TracedRequest {
    double arrival = 0;  // seconds after the first
    int64_t prompt = 0, answer = 0;
    int64_t most = -1;                     // tokens of the answer that its sender allowed; -1: no limit
    std::vector<uint64_t> beginning = {};  // as PagingRequest::beginning
    auto operator<=>(const TracedRequest &) const = default;
};

struct RequestTrace {
    std::vector<TracedRequest> requests;  // by arrival
    bool has_arrivals = false;
    bool has_beginnings = false;  // whether equal beginnings of prompts are known
    int64_t left_out = 0;         // answers that are errors
};

// Tokens of a prompt; called only for a trace with texts.
using EncodePrompt = std::function<std::vector<int32_t>(std::string_view)>;

// `page`: tokens of a page of the KV cache. Throws InputError, which names the line.
RequestTrace parse_trace(std::string_view text, const std::string &name, int32_t page,
                         const EncodePrompt &encode, const std::function<void()> &look = {});

}  // namespace runnel::commands
