// Lines of `runnel batch`: reads requests from JSON and writes answers as JSON.
//
// Input, one object per line, in two shapes:
//   a body as in completion/openai.h, and optionally "id"
//   {"custom_id": .., "url": .., "body": {the same}}: a line of an OpenAI batch file, for
//   /v1/chat/completions or /v1/completions
// Output:
//   {"id", "line", "text", "prompt_tokens", "completion_tokens", "finish_reason"}, or
//   {"id", "line", "error": {"message", "line"}}; "id" only if the request has one, "reasoning" if the model
//   reasoned, "forgotten_tokens" if the text exceeded the context and the answer continued, "logprobs" and
//   "prompt_logprobs" (completion/logprobs.h) if they were requested, "timings" with --timings: milliseconds from
//   when the row was read to its first pass (queued_ms) and to its first token (ttft_ms), of its prefill, from its first
//   token to its last (decode_ms), and the mean between two tokens (tpot_ms; null for a single token)
//   a line of an OpenAI batch output file (reasoning: "reasoning_content" of the message), whose "id" is
//   "batch_req_" and the line's number; its "created" is 0, so that equal runs write equal bytes
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/json.h"
#include "engine/completion/openai.h"

namespace runnel::commands {

// Which line an answer belongs to, and how it is written.
struct RowIdentity {
    enum class Shape { Plain, Chat, Completion };  // the last two: OpenAI's
    int64_t line = 0;                              // number in the input, from 1 on
    Shape shape = Shape::Plain;
    Json id;            // null: none
    std::string model;  // "model" of an OpenAI body, repeated in the answer
};

struct Row {
    RowIdentity identity;
    completion::Body body;
    bool raw = false;                  // the prompt is completed as it stands
    std::string error;                 // not empty: why the line cannot be answered
    std::vector<std::string> unknown;  // keys without a meaning here; one that looks mistyped is an `error`
};

// Never throws, whatever the line holds.
Row parse_row(std::string_view line, int64_t number);
// The whole line is the prompt.
Row text_row(std::string_view line, int64_t number);

// Lines of the output, with their line ends.
std::string answer_line(const RowIdentity &row, const completion::Reply &reply, const std::string &model);
std::string error_line(const RowIdentity &row, const std::string &error);

// What a resumed run reads from a line of the output.
struct WrittenRow {
    int64_t line;
    Json id;
    bool failed;
};
// nullopt for a line that this program did not write.
std::optional<WrittenRow> parse_written(std::string_view line);

}  // namespace runnel::commands
