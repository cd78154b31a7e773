// Perplexity of a text, and the divergence from a saved base.
#include "engine/decode/perplexity.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/decode/error.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using decode::LogitsReader;
using decode::LogitsWriter;

constexpr int32_t kDefaultContext = 512;

// The chunks of the text, in one piece.
std::vector<text::TokenId> text_tokens(const PerplexityOptions &options, const Engine &engine,
                                       int32_t context, Io &io) {
    std::string text = read_all(options.file, io.in);
    if (text.ends_with('\n')) text.pop_back();  // as llama.cpp reads prompts from files
    std::vector<text::TokenId> tokens = engine.tokenizer().encode(text);
    if (tokens.size() < 2 * static_cast<size_t>(context))
        throw InputError(gguf::printable(options.file, 4096) + " has " + std::to_string(tokens.size()) +
                         " tokens; a context of " + std::to_string(context) + " needs at least " +
                         std::to_string(2 * static_cast<size_t>(context)) + " (a smaller one with -c)");
    return tokens;
}

std::string summary(const decode::Perplexity &result) {
    char text[256];
    int used = 0;
    if (result.divergence)
        used = std::snprintf(
            text, sizeof text,
            "mean KL divergence: %.6f +/- %.6f\nmax KL divergence: %.6f\ntop-1 agreement: %.3f%%\n",
            result.divergence->mean, result.divergence->error, result.divergence->largest,
            100 * result.divergence->same_top);
    std::snprintf(text + used, sizeof text - static_cast<size_t>(used), "perplexity: %.4f +/- %.5f\n",
                  result.value, result.error);
    return text;
}

Json summary_json(const decode::Perplexity &result) {
    Json json = {{"perplexity", result.value}, {"error", result.error}, {"tokens", result.tokens}};
    if (result.divergence) {
        json["mean_kl"] = result.divergence->mean;
        json["mean_kl_error"] = result.divergence->error;
        json["max_kl"] = result.divergence->largest;
        json["top1_agreement"] = result.divergence->same_top;
    }
    return json;
}

// The size of the chunks: the base's, where there is one.
int32_t chunk_size(const PerplexityOptions &options, const std::optional<LogitsReader> &base) {
    if (base) {
        if (options.model.context > 0 && options.model.context != base->context())
            throw UsageError("-c " + std::to_string(options.model.context) +
                             ", but the base was made with -c " + std::to_string(base->context()));
        return base->context();
    }
    const int64_t asked = options.model.context > 0 ? options.model.context : kDefaultContext;
    if (asked < 4 || asked > 1 << 24) throw UsageError("-c: the context must be from 4 to 16777216 tokens");
    return static_cast<int32_t>(asked);
}

int32_t vocabulary_size(const std::string &path) {
    return static_cast<int32_t>(model::read_hyper_parameters(gguf::File::open(path)).vocab);
}

void check(const PerplexityOptions &options) {
    if (options.file.empty() == options.base.empty())
        throw UsageError(options.file.empty() ? "give the text with -f FILE (or a base with --kl-base FILE)"
                                              : "--kl-base holds the text already: leave -f away");
    if (!options.base.empty() && !options.save_logits.empty())
        throw UsageError("--save-logits and --kl-base exclude each other");
    if (options.chunks == 0) throw UsageError("--chunks: at least 1, or -1 for all");
}

}  // namespace

int perplexity(const PerplexityOptions &options, Io &io) {
    check(options);
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    std::optional<LogitsReader> base;
    if (!options.base.empty()) base.emplace(options.base, vocabulary_size(options.model.path));
    const int32_t context = chunk_size(options, base);
    decode::EngineOptions engine_flags = engine_options(options.model);
    engine_flags.context = context;
    Engine engine(engine_flags);

    std::vector<text::TokenId> tokens;
    if (base)
        tokens.assign(base->tokens().begin(), base->tokens().end());
    else
        tokens = text_tokens(options, engine, context, io);
    size_t chunks = tokens.size() / static_cast<size_t>(context);
    if (options.chunks > 0) chunks = std::min(chunks, static_cast<size_t>(options.chunks));
    tokens.resize(chunks * static_cast<size_t>(context));

    std::optional<LogitsWriter> save;
    if (!options.save_logits.empty())
        save.emplace(options.save_logits, context, engine.executor().vocab(), tokens);
    decode::PerplexityRun run(engine.executor(), tokens, context,
                              engine.tokenizer().adds_bos() ? engine.tokenizer().bos() : std::nullopt,
                              save ? &*save : nullptr, base ? &*base : nullptr);
    while (run.done() < run.chunks()) {
        if (!run.step(&stop)) throw Interrupted{};
        char progress[64];
        std::snprintf(progress, sizeof progress, "[%lld]%.4f,", static_cast<long long>(run.done()),
                      run.result().value);
        io.progress(progress);
    }
    io.progress("\n");
    if (save) save->commit();
    io.out.write(options.json ? dump(summary_json(run.result())) : summary(run.result()));
    return exit_code::kDone;
}

}  // namespace runnel::commands
