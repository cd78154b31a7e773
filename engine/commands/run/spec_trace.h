// The picture of `run --spec-trace`: which token came from which pass, and the time of each pass.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/measure/draft_timeline.h"
#include "engine/text/tokenizer.h"

namespace runnel::commands {

// Throws UsageError without drafts or for several answers, and what check_svg_file() throws.
void check_spec_trace(const RunOptions &options, const Io &io);
// At most 80 columns. [accepted], +the model's own token, ~rejected~.
std::string spec_trace_text(const measure::DraftTimeline &timeline, const text::Tokenizer &tokenizer);
std::string spec_trace_svg(const measure::DraftTimeline &timeline, const text::Tokenizer &tokenizer);
Json spec_trace_json(const measure::DraftTimeline &timeline);

// Writes the file, or the text to stderr if `path` is "-".
void write_spec_trace(const std::string &path, const measure::DraftTimeline &timeline,
                      const text::Tokenizer &tokenizer, Io &io);

}  // namespace runnel::commands
