#include "engine/commands/weight_type.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "engine/quantize/mix.h"

namespace runnel::commands {

std::string weight_type(const gguf::File &file) {
    if (const gguf::Value *value = file.find("general.file_type"))
        if (const auto number = value->as_int())
            for (const quantize::Mix &mix : quantize::mixes())
                if (mix.file_type == *number) return std::string(mix.name);
    std::map<gguf::Type, uint64_t> bytes;
    for (const gguf::Tensor &tensor : file.tensors()) bytes[tensor.type] += tensor.bytes;
    const auto most =
        std::ranges::max_element(bytes, [](const auto &a, const auto &b) { return a.second < b.second; });
    return most == bytes.end() ? "" : std::string(gguf::traits(most->first).name);
}

}  // namespace runnel::commands
