#include "engine/model/gemma4_layers.h"

#include <algorithm>

#include "engine/model/decoder.h"

namespace runnel::model {

Gemma4Layers::Gemma4Layers(Builder &b, int64_t period) : full_(full_layers(b, period)) {
    const Metadata &m = b.metadata();
    const HyperParameters &h = b.hyper();
    constexpr int64_t kMostHeads = 4096, kMostWidth = 1 << 20;
    kv_heads_ = by_layer(b, "attention.head_count_kv", 1, kMostHeads, h.head_count);
    hidden_ = by_layer(b, "feed_forward_length", 1, kMostWidth, h.feed_forward_length);
    for (const int64_t heads : kv_heads_)
        if (h.head_count % heads != 0)
            m.fail("attention.head_count_kv", "does not divide attention.head_count");
    read_kinds(b);
}

void Gemma4Layers::read_kinds(Builder &b) {
    using kernels::RopeTable;
    const Metadata &m = b.metadata();
    const HyperParameters &h = b.hyper();
    const auto size = [&](const char *key, int64_t high, int64_t absent) {
        return m.integer(key, 1, high).value_or(absent);
    };
    constexpr int64_t kMostInHead = 1024;
    const int64_t key = size("attention.key_length_swa", kMostInHead, h.key_length);
    if (h.value_length != h.key_length) m.fail("attention.value_length", "differs from attention.key_length");
    if (size("attention.value_length_swa", kMostInHead, key) != key)
        m.fail("attention.value_length_swa", "differs from attention.key_length_swa");
    const int64_t rotated = size("rope.dimension_count_swa", key, key);
    if (rotated % 2 != 0) m.fail("rope.dimension_count_swa", "must be even");
    // Without the divisors, all pairs of full layers would turn, which the model does not expect.
    if (std::find(full_.begin(), full_.end(), true) != full_.end())
        b.values("rope_freqs.weight", {1, "a vector"}, {h.rope_dimensions / 2, "rope.dimension_count / 2"});
    whole_ = {.head = {h.key_length, "attention.key_length"},
              .q_keys = "attention.head_count * key_length",
              .kv_keys = "attention.head_count_kv * key_length",
              .window = 0,
              .rope = b.rope(RopeTable::Pairs::Halves),
              .values_may_be_keys = true};
    windowed_ = {
        .head = {key, "attention.key_length_swa"},
        .q_keys = "attention.head_count * key_length_swa",
        .kv_keys = "attention.head_count_kv * key_length_swa",
        .window = static_cast<int32_t>(m.required_integer("attention.sliding_window", 1, INT32_MAX)),
        .rope = b.unscaled_rope(RopeTable::Pairs::Halves, m.real("rope.freq_base_swa").value_or(10000),
                                static_cast<int32_t>(rotated))};
}

}  // namespace runnel::model
