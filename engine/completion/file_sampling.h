// The sampling defaults that a model file may hold: the keys general.sampling.*.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/decode/sampling_settings.h"
#include "gguf/file.h"

namespace runnel::completion {

struct FileSampling {
    struct Value {
        const decode::SamplingSetting *setting;
        double value;  // in the setting's range
    };
    std::vector<Value> values;
    std::optional<decode::SamplerOrder> samplers;
    std::vector<std::string> notes;  // about keys that are ignored: unknown ones, and values out of range

    bool any() const { return !values.empty() || samplers.has_value(); }
    void apply(decode::SamplingOptions &options) const;
    // "temp 0.6, top-p 0.95"; empty for none.
    std::string text() const;
};

FileSampling file_sampling(const gguf::File &file);

}  // namespace runnel::completion
