// The families that can be converted, by the class that config.json names in `architectures`. Each was compared with
// Hugging Face's transformers (scripts/check-convert).
#pragma once

#include <span>
#include <string_view>

#include "engine/convert/decoder.h"

namespace runnel::convert {

struct Family {
    std::string_view name;          // "LlamaForCausalLM"
    std::string_view architecture;  // "llama"
    void (*convert)(Decoder &decoder);
    // What config.json may omit, as JSON: its class's defaults. (Published folders of Gemma 3 hold few settings.)
    std::string_view defaults = "{}";
};

std::span<const Family> families();

}  // namespace runnel::convert
