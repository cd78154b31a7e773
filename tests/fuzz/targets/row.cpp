// A line of a batch's input, and the output line made from it, read back.
#include "engine/commands/batch/batch_row.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {

void row(Input input) {
    const std::string_view line = text_of(input);
    const commands::Row row = commands::parse_row(line, 7);
    require(row.identity.line == 7, "the line's number is kept");
    if (row.error.empty()) {
        require(row.body.prompt || !row.body.messages.empty(), "a body has a prompt or messages");
        completion::Request request;
        row.body.apply(request);
    }
    const std::string written = commands::error_line(row.identity, "an error");
    require(written.find('\n') == written.size() - 1, "an answer is one line");
    const auto read = commands::parse_written(written);
    require(read && read->line == 7 && read->failed, "a written line can be read back");
    (void)commands::parse_written(line);
}

}  // namespace runnel::fuzz
