// Options that several commands have.
#pragma once

#include "engine/commands/cli/command.h"
#include "engine/commands/options.h"

namespace runnel::commands {

// Adds an option for a device name (decode/device.h); also accepts llama.cpp's "none" and "CUDA0".
Option &add_device_option(OptionTable &table, std::string_view names, std::string &device,
                          std::string_view help);

// Adds cache types, window and sinks.
void add_cache_options(OptionTable &table, decode::CacheOptions &o);

// Adds context, cache, threads and device.
void add_model_options(OptionTable &table, ModelOptions &o);

// Adds the options of speculative decoding.
void add_draft_options(OptionTable &table, DraftFlags &o);

// Adds the options for sampling and for the end of an answer.
void add_generation_options(OptionTable &table, GenerationFlags &o);

// Adds --logprobs and --prompt-logprobs.
void add_logprob_options(OptionTable &table, GenerationFlags &options);
void add_stats_options(OptionTable &table, StatsFlags &o);

void add_system_options(OptionTable &table, std::optional<std::string> &text,
                        std::optional<std::string> &file);

void add_template_options(OptionTable &table, TemplateFlags &o, std::optional<bool> &show_thinking);

// Adds --on-overflow: what to do with text that exceeds the context.
void add_overflow_option(OptionTable &table, Overflow &overflow);

}  // namespace runnel::commands
