// The picture of `run --attention-map`: how much each token of a text attends to the tokens before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/commands/prompt_format.h"
#include "engine/commands/run/run_output.h"
#include "engine/completion/request.h"
#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"
#include "kernels/attention_map.h"

namespace runnel::commands {

inline constexpr size_t kMostMapTokens = 128;

// Throws UsageError for contradictory options, and what check_svg_file() throws.
void check_attention_map(const RunOptions &options, const Io &io);
// The layer to show: the requested one, or that in the middle. Throws UsageError if the layer or the head does not
// exist, or the layer has no attention.
int32_t attention_layer(const RunOptions &options, const kernels::Program &program);

struct AttentionPicture {
    const kernels::AttentionMap &map;
    std::vector<std::string> labels;  // one for each token
    std::vector<size_t> heads;        // the heads to show
};
AttentionPicture attention_picture(const RunOptions &options, const kernels::AttentionMap &map,
                                   std::span<const text::TokenId> tokens, const text::Tokenizer &tokenizer);
// The map of the first shown head as text of at most 80 columns; only the labels may have characters besides ASCII.
std::string attention_text(const AttentionPicture &picture);
std::string attention_svg(const AttentionPicture &picture);
Json attention_json(const AttentionPicture &picture);

// Mean share of a head's attention that the first token gets from the tokens after it.
double first_token_share(const kernels::AttentionMap &map, size_t head);

// Draws the map of the prompt and the first answer of `output`: writes the file, or returns the text for "-". Does
// nothing if a stop was requested.
std::string draw_attention(const RunOptions &options, int32_t layer, decode::Engine &engine,
                           const completion::PromptFormat &format, const completion::Request &request,
                           const decode::StopRequest &stop, RunOutput &output, Io &io);

}  // namespace runnel::commands
