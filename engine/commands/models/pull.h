// `runnel pull`: downloads a model from Hugging Face into Hugging Face's cache.
#pragma once

#include <string>

#include "engine/commands/io.h"
#include "engine/commands/models/download.h"
#include "engine/commands/models/hub_api.h"

namespace runnel::commands {

// Downloads the files of a model that are not in the cache yet, all parts of a split model, and returns the
// path of the first one. The model appears in the cache when it is complete. Throws UsageError for a name
// that does not exist, OutputError, HttpError, and Interrupted, which keeps the downloaded part.
std::string pull(const HubName &name, const DownloadOptions &options, Io &io);

// The path of the first file of a model that is in the cache, without asking the server. nullopt if it is not there.
std::optional<std::string> find_pulled(const HubName &name);

// "model.gguf [####----]  50%  2.3 of 4.6 GiB  51 MB/s  0:45 left"
std::string pull_line(const std::string &name, uint64_t done, uint64_t all, double rate);

// Removes a model from Hugging Face's cache, with all files that no other model uses; the name of a
// repository means all its models. Asks unless `is_sure`. Throws UsageError if there is none.
int remove_model(const std::string &name, bool is_sure, Io &io);

}  // namespace runnel::commands
