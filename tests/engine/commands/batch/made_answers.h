// Answers of a batch, made by a rule.
#pragma once

#include <string>

#include "engine/commands/batch/batch_row.h"

namespace runnel::testing {

inline commands::RowIdentity row_of(int64_t line) {
    commands::RowIdentity row;
    row.line = line;
    return row;
}

// The answer to a line of the input; its length depends on the line.
inline std::string answer_of(int64_t line) {
    return commands::answer_line(row_of(line),
                                 {.text = std::string(static_cast<size_t>(line * 37 % 90), 'x'),
                                  .reasoning = {},
                                  .reason = completion::FinishReason::Stop,
                                  .usage = {.prompt_tokens = 3}},
                                 "m");
}

}  // namespace runnel::testing
