// The measured sensitivity of a model's tensors, kept as JSON: `runnel quantize --sensitivity FILE`.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/commands/io.h"

namespace runnel::commands {

struct SensitivityFile {
    struct Entry {
        int64_t elements = 0;
        double slope = 0;  // KL divergence per relative squared error
    };
    std::string text;    // name of the text
    int64_t tokens = 0;  // scored
    std::map<std::string, Entry> tensors;

    // Throws UsageError if the file cannot be opened, InputError naming what is wrong with it.
    static SensitivityFile load(const std::string &path);
    // The file appears when it is complete. Throws gguf::WriteError.
    void save(const std::string &path, bool overwrite) const;
};

}  // namespace runnel::commands
