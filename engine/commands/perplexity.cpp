// Perplexity of a text, and the divergence from a saved base.
#include "engine/measure/perplexity.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/commands/growing_line.h"
#include "engine/decode/error.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using measure::LogitsReader;
using measure::LogitsWriter;

constexpr int32_t kDefaultContext = 512;

// All chunks of the text, concatenated.
std::vector<text::TokenId> text_tokens(const PerplexityOptions &options, const Engine &engine,
                                       int32_t context, const decode::StopRequest &stop, Io &io) {
    std::string text = read_all(options.file, io.in, &stop);
    if (text.ends_with('\n')) text.pop_back();  // llama.cpp also drops it from prompt files
    std::vector<text::TokenId> tokens = engine.tokenizer().encode(text);
    if (tokens.size() < 2 * static_cast<size_t>(context))
        throw InputError(gguf::printable(options.file, 4096) + " has " + std::to_string(tokens.size()) +
                         " tokens, but a context of " + std::to_string(context) + " needs at least " +
                         std::to_string(2 * static_cast<size_t>(context)) +
                         ": choose a shorter context with -c, or a longer text");
    return tokens;
}

// The number with `places` decimal places, however large it is.
std::string decimal(double value, int places) {
    char text[512];  // the largest double has 309 digits before the point
    std::snprintf(text, sizeof text, "%.*f", places, value);
    return text;
}

// Perplexity per byte of the text instead of per token, to compare models with different vocabularies: exp of
// the total loss of the scored tokens divided by their bytes.
double per_byte(const measure::Perplexity &result, std::span<const text::TokenId> tokens,
                const measure::Chunks &chunks, const text::Tokenizer &tokenizer) {
    size_t bytes = 0;
    for (int64_t chunk = 0; chunk < chunks.count(static_cast<int64_t>(tokens.size())); ++chunk)
        for (const text::TokenId id :
             tokens.subspan(static_cast<size_t>(chunk * chunks.stride + chunks.first_scored + 1),
                            static_cast<size_t>(chunks.scored())))
            bytes += tokenizer.decode(id).size();
    return bytes == 0 ? result.value
                      : std::exp(std::log(result.value) * static_cast<double>(result.tokens) /
                                 static_cast<double>(bytes));
}

std::string summary(const measure::Perplexity &result, double by_byte) {
    std::string text;
    if (const auto &d = result.divergence)
        text = "mean KL divergence: " + decimal(d->mean, 6) + " +/- " + decimal(d->error, 6) +
               "\nmax KL divergence: " + decimal(d->largest, 6) +
               "\ntop-1 agreement: " + decimal(100 * d->same_top, 3) + "%\n";
    return text + "perplexity: " + decimal(result.value, 4) + " +/- " + decimal(result.error, 5) +
           "\nper byte: " + decimal(by_byte, 4) + "\n";
}

Json summary_json(const measure::Perplexity &result, double by_byte) {
    Json json = {{"perplexity", result.value},
                 {"error", result.error},
                 {"tokens", result.tokens},
                 {"per_byte", by_byte}};
    if (result.divergence) {
        json["mean_kl"] = result.divergence->mean;
        json["mean_kl_error"] = result.divergence->error;
        json["max_kl"] = result.divergence->largest;
        json["top1_agreement"] = result.divergence->same_top;
    }
    return json;
}

// The number of tokens of a chunk: the base's, if there is one.
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
                                              : "--kl-base contains the text already: omit -f");
    if (!options.base.empty() && !options.save_logits.empty())
        throw UsageError("--save-logits and --kl-base cannot be combined");
    if (options.chunks == 0) throw UsageError("--chunks: expected at least 1, or -1 for all");
    if (options.tasks) throw UsageError("--tasks needs --hellaswag, --winogrande or --multiple-choice");
    if (options.stride > 0 && (!options.base.empty() || !options.save_logits.empty()))
        throw UsageError("saved logits have chunks that do not overlap: omit --ppl-stride");
}

measure::Chunks chunks_of(const PerplexityOptions &options, int32_t context) {
    if (options.stride == 0) return measure::Chunks::adjacent(context);
    if (options.stride >= context)
        throw UsageError("--ppl-stride " + std::to_string(options.stride) +
                         ": expected less than the context of " + std::to_string(context) + " tokens (-c)");
    return measure::Chunks::overlapping(context, options.stride);
}

}  // namespace

int perplexity(const PerplexityOptions &options, Io &io) {
    check(options);
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    std::optional<LogitsReader> base;
    if (!options.base.empty()) base.emplace(options.base, vocabulary_size(options.model.path));
    const int32_t context = chunk_size(options, base);
    const measure::Chunks layout = chunks_of(options, context);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    engine_flags.context = context;
    engine_flags.weights.rearranged = false;  // no pass has few tokens
    note_inputs({options.file, options.base});
    if (!options.save_logits.empty()) gguf::check_output(options.save_logits, {.overwrite = io.overwrite});
    Engine engine(engine_flags);

    std::vector<text::TokenId> tokens;
    if (base)
        tokens.assign(base->tokens().begin(), base->tokens().end());
    else
        tokens = text_tokens(options, engine, context, stop, io);
    int64_t chunks = layout.count(static_cast<int64_t>(tokens.size()));
    if (options.chunks > 0) chunks = std::min(chunks, options.chunks);
    tokens.resize(static_cast<size_t>(layout.tokens(chunks)));

    std::optional<LogitsWriter> save;
    if (!options.save_logits.empty())
        save.emplace(options.save_logits, context, engine.executor().vocab(), tokens, io.overwrite);
    const std::optional<text::TokenId> begin = measure::text_begin(engine.tokenizer());
    measure::PerplexityRun run =
        options.stride > 0 ? measure::PerplexityRun(engine.executor(), tokens, layout, begin)
                           : measure::PerplexityRun(engine.executor(), tokens, context, begin,
                                                    save ? &*save : nullptr, base ? &*base : nullptr);
    GrowingLine progress(io);
    while (run.done() < run.chunks()) {
        if (!run.step(&stop)) throw Interrupted{};
        progress.show("[" + std::to_string(run.done()) + "]" + decimal(run.result().value, 4) + ",");
    }
    progress.end();
    if (save) save->commit();
    const measure::Perplexity result = run.result();
    const double by_byte = per_byte(result, tokens, layout, engine.tokenizer());
    io.out.write(options.json ? dump(summary_json(result, by_byte)) : summary(result, by_byte));
    return exit_code::kDone;
}

}  // namespace runnel::commands
