// What `runnel run` asks the model: the prompt's text, and the request.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"

namespace runnel::commands {

// The argument, then the file or what is piped in, after a blank line. Throws InputError if there is no text.
std::string gather_prompt(const RunOptions &options, Io &io, const decode::StopRequest &stop);

// One turn of a conversation, or a text that is completed as it stands. Throws UsageError for contradictory
// options.
completion::Request request_of(const RunOptions &options, const std::string &text,
                               const completion::PromptFormat &format, const decode::StopRequest &stop,
                               Io &io);

}  // namespace runnel::commands
