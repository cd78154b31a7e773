// The table of `runnel list`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/commands/io.h"
#include "engine/commands/models/stores.h"

namespace runnel::commands {

struct ListedModel {
    StoredModel model;   // its `problem` also says why the file cannot be opened or run
    uint64_t bytes = 0;  // of all parts
    std::string type, family;
    std::optional<uint64_t> parameters;
    enum class Fits { Unknown, No, Memory, Gpu } fits = Fits::Unknown;
};

// Reads the headers of the file. A file that cannot be opened or run has a problem.
ListedModel examine(const StoredModel &model);

int list_models(bool as_json, Io &io);

}  // namespace runnel::commands
