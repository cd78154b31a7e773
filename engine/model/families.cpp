#include "engine/model/families.h"

namespace runnel::model {

std::span<const Family> families() {
    static constexpr Family kFamilies[] = {
        {"llama", emit_llama},
        {"qwen2", emit_qwen2},
        {"qwen3", emit_qwen3},
    };
    return kFamilies;
}

}  // namespace runnel::model
