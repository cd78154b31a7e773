// Makes the request of `runnel run`: the prompt's text, then the request.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/commands/options.h"
#include "engine/completion/prompt.h"
#include "engine/completion/request.h"

namespace runnel::commands {

// The prompt: the argument, then, after a blank line, the file or the piped input. Throws InputError if it is empty.
std::string gather_prompt(const RunOptions &options, Io &io, const decode::StopRequest &stop);

// A request for one turn of a conversation, or for the completion of a text without a template. Throws UsageError
// for contradictory options.
completion::Request request_of(const RunOptions &options, const std::string &text, const gguf::File &model,
                               const completion::PromptFormat &format, const decode::StopRequest &stop,
                               Io &io);

}  // namespace runnel::commands
