#include "engine/model/silu_limits.h"

#include <string>

namespace runnel::model {

SiluLimits silu_limits(const Builder &builder, const char *key, bool before) {
    const Metadata &m = builder.metadata();
    const auto layers = static_cast<size_t>(builder.hyper().block_count + builder.hyper().draft_layers);
    auto limits = m.reals(key);
    if (!limits) {
        const auto one = m.real(key, 0);
        if (!one) return {};
        limits.emplace(layers, static_cast<float>(*one));
    }
    if (limits->size() != layers)
        m.fail(key, "has " + std::to_string(limits->size()) + " entries, but there are " +
                        std::to_string(layers) + " layers");
    for (float &limit : *limits) {
        if (limit < 0) m.fail(key, "has a negative entry");
        if (limit <= 1e-6f) limit = 0;
    }
    return {std::move(*limits), before};
}

}  // namespace runnel::model
