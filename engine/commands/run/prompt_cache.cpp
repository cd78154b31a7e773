#include "engine/commands/run/prompt_cache.h"

#include <algorithm>
#include <utility>

#include "gguf/printable.h"
#include "gguf/writer.h"

namespace runnel::commands {

PromptCache::PromptCache(const std::optional<std::string> &path, const ModelOptions &options,
                         decode::Engine &engine, Io &io)
    : path_(path), engine_(engine), io_(io) {
    if (!path_) return;
    identity_ = decode::prompt_identity(engine.file(), engine.model().program,
                                        engine.executor().device().kind, options.cache.types);
    decode::PromptFileResult result = decode::load_prompt_file(*path_, identity_, engine.executor());
    using State = decode::PromptFileResult::State;
    const std::string name = gguf::printable(*path_, 4096);
    if (result.state == State::Foreign && !io.overwrite)
        throw UsageError(name + ": " + result.why +
                         ", so it is not overwritten; choose another file, or add --overwrite");
    if (result.state == State::Rejected)
        io.note(name + ": " + result.why + ": the file is not used, and is written again");
    if (result.state == State::NoRoom) io.note(name + ": " + result.why + ": not used");
    known_ = std::move(result.tokens);
}

void PromptCache::keep(const decode::Sequence *sequence, size_t prompt_tokens) {
    if (!path_ || !sequence || std::exchange(kept_, true)) return;
    const std::vector<text::TokenId> &tokens = sequence->tokens();
    const size_t whole = prompt_tokens / size_t{kernels::kBlockTokens} * size_t{kernels::kBlockTokens};
    const bool same = known_.size() == whole && whole <= tokens.size() &&
                      std::equal(known_.begin(), known_.end(), tokens.begin());
    if (whole == 0)
        io_.note("the prompt has " + std::to_string(prompt_tokens) + " tokens, too few for " +
                 gguf::printable(*path_, 4096) + ": prompts are kept in blocks of " +
                 std::to_string(kernels::kBlockTokens));
    if (same || whole == 0 || tokens.size() < prompt_tokens) return;
    try {
        decode::save_prompt_file(*path_, identity_, engine_.executor(), sequence->cache(), whole,
                                 io_.overwrite);
    } catch (const gguf::WriteError &error) {
        io_.note(error.what());
    }
}

}  // namespace runnel::commands
