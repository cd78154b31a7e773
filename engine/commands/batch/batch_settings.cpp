#include "engine/commands/batch/batch_settings.h"

#include <charconv>
#include <concepts>
#include <optional>

#include "engine/commands/cache_types.h"
#include "engine/commands/generation.h"
#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/decode/prompt_file.h"
#include "engine/decode/sampling_settings.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr const char *kSeedSetting = "--seed";
constexpr uint64_t kShardSeed = 0;

template <class T>
requires std::is_arithmetic_v<T> std::string text_of(T number) {
    char text[64];
    return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

std::string text_of(bool flag) {
    return flag ? "on" : "off";
}

const char *name_of(Overflow overflow) {
    switch (overflow) {
        case Overflow::Error:
            return "error";
        case Overflow::Shift:
            return "shift";
        case Overflow::DropMiddle:
            break;
    }
    return "drop-middle";
}

const char *name_of(text::Thinking thinking) {
    switch (thinking) {
        case text::Thinking::Default:
            return "auto";
        case text::Thinking::Off:
            return "off";
        case text::Thinking::On:
            return "on";
        case text::Thinking::Low:
            return "low";
        case text::Thinking::Medium:
            return "medium";
        case text::Thinking::High:
            break;
    }
    return "high";
}

std::string hash_or_nothing(const std::string &text) {
    return text.empty() ? text : content_hash(text);
}

std::string hash_of_file(const std::optional<std::string> &path) {
    return path ? content_hash(read_all(*path, -1)) : std::string();
}

std::string hash_of(const std::optional<grammar::Source> &constraint) {
    if (!constraint) return {};
    Json parts = {static_cast<int>(constraint->kind), constraint->text,
                  static_cast<int>(constraint->options.whitespace), constraint->options.any_order};
    for (const std::string &choice : constraint->choices) parts.push_back(choice);
    return content_hash(dump(parts));
}

// The texts as JSON, so that one text with a blank differs from two texts; empty for no texts.
std::string list_of(const std::vector<std::string> &texts) {
    return texts.empty() ? std::string() : Json(texts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_sampling(const decode::SamplingOptions &s, BatchSettings &list) {
    list.emplace_back(kSeedSetting, text_of(s.seed));
    // Settings that an earlier version did not have are listed only where they change something.
    const decode::SamplingOptions usual;
    for (const decode::SamplingSetting &setting : decode::sampling_settings())
        if (!setting.rare || setting.get(s) != setting.get(usual))
            list.emplace_back("--" + std::string(setting.name), decode::shown_number(setting.get(s)));
    if (s.samplers != usual.samplers) list.emplace_back("--samplers", decode::samplers_text(s.samplers));
    if (s.dry_breakers != usual.dry_breakers)
        list.emplace_back("--dry-sequence-breaker", list_of(s.dry_breakers));
}

}  // namespace

decode::SamplingOptions batch_sampling(const BatchOptions &options, const gguf::File &model,
                                       const BatchOutput &output, Io &io) {
    GenerationFlags flags = with_file_sampling(options.generation, model, io);
    if (const auto seed = flags.seed ? std::nullopt : output.earlier(kSeedSetting)) {
        uint64_t value = 0;
        if (std::from_chars(seed->data(), seed->data() + seed->size(), value).ec == std::errc())
            flags.seed = value;
    }
    if (!flags.seed && options.shard.parts > 1) flags.seed = kShardSeed;
    return sampling_options(flags);
}

BatchSettings batch_settings(const BatchOptions &options, decode::Engine &engine,
                             const decode::SamplingOptions &sampling, const std::string &system,
                             const std::optional<grammar::Source> &constraint) {
    const GenerationFlags &g = options.generation;
    BatchSettings list;
    const base::Checksum::Value model = decode::file_identity(engine.file());
    list.emplace_back("the model", content_hash({reinterpret_cast<const char *>(&model), sizeof model}));
    list.emplace_back("the device", engine.executor().device().kind + ", " + engine.placement());
    list.emplace_back("the context", text_of(engine.executor().context()));
    list.emplace_back("--cache-type-k", name_of(options.model.cache.types.k));
    list.emplace_back("--cache-type-v", name_of(options.model.cache.types.v));
    list.emplace_back("--window", text_of(options.model.cache.window));
    list.emplace_back("--sinks", text_of(options.model.cache.sinks));
    add_sampling(sampling, list);
    list.emplace_back("--logit-bias", list_of(g.logit_bias));
    list.emplace_back("--predict", text_of(g.predict));
    list.emplace_back("--stop", list_of(g.stops));
    if (!g.bans.empty()) list.emplace_back("--ban", list_of(g.bans));
    list.emplace_back("--ignore-eos", text_of(g.ignore_eos));
    list.emplace_back("the grammar", hash_of(constraint));
    list.emplace_back("--close", text_of(g.constraint.close));
    // Of the grammar's JSON, the hash above has them.
    if (const grammar::SchemaOptions style = json_style(g.constraint); !(style == grammar::SchemaOptions()))
        list.emplace_back("--whitespace", text_of(static_cast<int>(style.whitespace)) +
                                              (style.any_order ? ", --any-order" : ""));
    if (g.logprobs >= 0) list.emplace_back("--logprobs", text_of(g.logprobs));
    if (g.prompt_logprobs >= 0) list.emplace_back("--prompt-logprobs", text_of(g.prompt_logprobs));
    list.emplace_back("the system prompt", hash_or_nothing(system));
    list.emplace_back("--chat-template", hash_of_file(options.chat.file));
    list.emplace_back("--template-name", gguf::printable(options.chat.name.value_or("")));
    list.emplace_back("--template-var", list_of(options.chat.variables));
    list.emplace_back("--think", name_of(options.chat.thinking));
    if (options.chat.thinking_budget >= 0)
        list.emplace_back("--thinking-budget", text_of(options.chat.thinking_budget));
    list.emplace_back("--tools", hash_of_file(options.chat.tools));
    if (options.chat.tool_choice)
        list.emplace_back("--tool-choice", gguf::printable(*options.chat.tool_choice, 1000));
    if (options.chat.one_call) list.emplace_back("--no-parallel-tool-calls", text_of(true));
    list.emplace_back("--show-thinking", text_of(options.show_thinking.value_or(false)));
    list.emplace_back("--lines", text_of(options.lines));
    list.emplace_back("--raw", text_of(options.raw));
    list.emplace_back("--on-overflow", name_of(options.overflow));
    list.emplace_back("--shard", text_of(options.shard.part) + "/" + text_of(options.shard.parts));
    if (options.draft.rule == decode::DraftRule::Rejection)
        list.emplace_back("--draft-rule", "rejection, " + gguf::printable(options.draft.model, 1000) + ", " +
                                              text_of(options.draft.lookup) + ", " +
                                              text_of(options.draft.self_layers) + ", " +
                                              text_of(options.draft.mtp != decode::Mtp::Off));
    return list;
}

}  // namespace runnel::commands
