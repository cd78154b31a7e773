// Options that several commands have.
#pragma once

#include "engine/commands/cli/command.h"
#include "engine/commands/options.h"

namespace runnel::commands {

// A device name (decode/device.h), or llama.cpp's "none" and "CUDA0".
Option &add_device_option(OptionTable &table, std::string_view names, std::string &device,
                          std::string_view help);

// Cache types, window and sinks.
void add_cache_options(OptionTable &table, decode::CacheOptions &o);

// Context, cache, threads, device.
void add_model_options(OptionTable &table, ModelOptions &o);

// Speculative decoding.
void add_draft_options(OptionTable &table, DraftFlags &o);

// Sampling and the end of an answer.
void add_generation_options(OptionTable &table, GenerationFlags &o);

// Log-probabilities in JSON.
void add_logprob_options(OptionTable &table, GenerationFlags &options);
void add_stats_options(OptionTable &table, StatsFlags &o);

void add_system_options(OptionTable &table, std::optional<std::string> &text,
                        std::optional<std::string> &file);

void add_template_options(OptionTable &table, TemplateFlags &o, std::optional<bool> &show_thinking);

// How to handle text that exceeds the context.
void add_overflow_option(OptionTable &table, Overflow &overflow);

}  // namespace runnel::commands
