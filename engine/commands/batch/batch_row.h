// A line of `runnel batch`: from JSON to a request, from an answer to JSON.
//
// In, one object a line, in two shapes:
//   {"prompt": TEXT} or {"messages": [{"role": .., "content": ..}, ..]}, and optionally "id", "max_tokens",
//   "seed", "stop", and the sampling settings under their keys (decode/sampling_settings.h)
//   {"custom_id": .., "url": .., "body": {the same}}: a line of an OpenAI batch file, for
//   /v1/chat/completions or /v1/completions
// Out:
//   {"id", "line", "text", "prompt_tokens", "completion_tokens", "finish_reason"}, or
//   {"id", "line", "error": {"message", "line"}}; "id" only where the request has one, "reasoning" where the
//   model reasoned, "forgotten_tokens" where the text outgrew the context and the answer went on
//   a line of an OpenAI batch output file (reasoning: "reasoning_content" of the message), whose "id" is
//   "batch_req_" and the line's number; its "created" is 0, because the same run is to give the same bytes
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/commands/json.h"
#include "engine/decode/answer_batch.h"
#include "engine/decode/sampling_settings.h"
#include "engine/text/chat_template.h"

namespace runnel::commands {

// Which line an answer belongs to, and how it is written.
struct RowIdentity {
    enum class Shape { Plain, Chat, Completion };  // the last two: OpenAI's
    int64_t line = 0;                              // number in the input, from 1 on
    Shape shape = Shape::Plain;
    Json id;            // null: none
    std::string model;  // that an OpenAI body asks for: comes back in the answer
};

struct RowRequest {
    std::optional<std::string> prompt;  // or
    std::vector<text::Message> messages;
    bool raw = false;  // the prompt is completed as it stands
    std::optional<int64_t> max_tokens;
    std::vector<std::string> stops;
    std::optional<uint64_t> seed;
    std::vector<std::pair<const decode::SamplingSetting *, double>> sampling;  // what the row says

    // These settings over the others. The seed stays as it is.
    void apply(decode::SamplingOptions &options) const;
};

struct Row {
    RowIdentity identity;
    RowRequest request;
    std::string error;                 // not empty: the line cannot be answered, and this is why
    std::vector<std::string> unknown;  // keys that mean nothing here, unless they were mistyped: `error` then
};

// Never throws for what the line holds.
Row parse_row(std::string_view line, int64_t number);
// The line as it stands is the prompt.
Row text_row(std::string_view line, int64_t number);

// Lines of the output, with their line ends. reasoning: told apart from the answer's text.
std::string answer_line(const RowIdentity &row, const decode::AnswerBatch::Finished &answer,
                        const std::string &model, const std::string &reasoning = {});
std::string error_line(const RowIdentity &row, const std::string &error);

// What a line of the output tells to a run that goes on with it.
struct WrittenRow {
    int64_t line;
    Json id;
    bool failed;
};
// nullopt for a line that this program did not write.
std::optional<WrittenRow> parse_written(std::string_view line);

}  // namespace runnel::commands
