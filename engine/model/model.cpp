#include "engine/model/model.h"

#include <algorithm>

#include "engine/model/assistant.h"
#include "engine/model/draft_block.h"
#include "engine/model/draft_head.h"
#include "engine/model/factors.h"
#include "engine/model/families.h"
#include "engine/model/notes.h"
#include "engine/model/other_architectures.h"
#include "engine/model/rotation.h"
#include "engine/model/unread_keys.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

// Limits far above any known model, and low enough that products of a few of them fit in 64 bits.
constexpr int64_t kMaxWidth = 1 << 20, kMaxLayers = 4096, kMaxHeads = 4096, kMaxHeadDim = 1024,
                  kMaxContext = 1 << 28;

int64_t vocabulary_rows(const gguf::File &file) {
    const gguf::Tensor *embedding = file.find_tensor("token_embd.weight");
    if (embedding) {
        if (embedding->rank > 2 || embedding->shape[1] < 1 || embedding->shape[1] > INT32_MAX)
            throw ModelError(name_of(file) + ": tensor token_embd.weight: not a table of token embeddings");
        return embedding->shape[1];
    }
    const gguf::Value *tokens = file.find("tokenizer.ggml.tokens");
    return tokens && tokens->type() == gguf::ValueType::Array ? static_cast<int64_t>(tokens->size()) : 0;
}

// One number for the whole model; in families whose layers may differ, the largest.
std::optional<int64_t> of_all_layers(const Metadata &m, std::string_view key, int64_t layers, int64_t low,
                                     int64_t high) {
    const Family *family = find_family(m.architecture());
    const bool differ = family ? family->layers_differ : m.architecture() == kAssistant;
    if (!differ) return m.integer(key, low, high);
    const auto each = m.integers(key, layers, family && family->recurrent ? 0 : low, high);
    return each ? std::optional(*std::max_element(each->begin(), each->end())) : std::nullopt;
}

HyperParameters read(const gguf::File &file, const Metadata &m) {
    HyperParameters h;
    h.architecture = m.architecture();
    h.vocab = vocabulary_rows(file);
    h.context_length = m.required_integer("context_length", 1, kMaxContext);
    h.embedding_length = m.required_integer("embedding_length", 1, kMaxWidth);
    h.block_count = static_cast<int32_t>(m.required_integer("block_count", 1, kMaxLayers));
    // The last layers of some files draft tokens for speculative decoding and are not part of the model itself.
    // (An assistant has no others; it is a file of its own.)
    h.draft_layers =
        h.architecture == kAssistant
            ? 0
            : static_cast<int32_t>(m.integer("nextn_predict_layers", 0, h.block_count - 1).value_or(0));
    h.block_count -= h.draft_layers;
    // Models in which all layers have experts may give only the experts' width.
    const auto expert_width = m.integer("expert_feed_forward_length", 0, kMaxWidth);
    const int64_t layers = int64_t{h.block_count} + h.draft_layers;
    const auto width = of_all_layers(m, "feed_forward_length", layers, 0, kMaxWidth);
    const Family *family = find_family(h.architecture);
    const bool recurrent = family && family->recurrent;  // some layers have no attention or no network
    h.feed_forward_length = width.value_or(0) > 0 || recurrent ? width.value_or(0)
                            : expert_width.value_or(0) > 0
                                ? *expert_width
                                : m.required_integer("feed_forward_length", 1, kMaxWidth);
    const auto heads = of_all_layers(m, "attention.head_count", layers, 1, kMaxHeads);
    h.head_count = static_cast<int32_t>(recurrent ? std::max<int64_t>(1, heads.value_or(1))
                                        : heads   ? *heads
                                                  : m.required_integer("attention.head_count", 1, kMaxHeads));
    h.head_count_kv = static_cast<int32_t>(std::max<int64_t>(
        1, of_all_layers(m, "attention.head_count_kv", layers, 1, kMaxHeads).value_or(h.head_count)));
    // (Where layers differ, each is checked by its family.)
    if (!(family && family->layers_differ) && h.architecture != kAssistant &&
        h.head_count % h.head_count_kv != 0)
        m.fail("attention.head_count_kv", "does not divide attention.head_count");
    int64_t head = std::clamp<int64_t>(h.embedding_length / h.head_count, 1, kMaxHeadDim);
    if (family && family->whole_heads_rotate)
        head = m.integer("rope.dimension_count", 1, kMaxHeadDim).value_or(head);
    h.key_length = static_cast<int32_t>(m.integer("attention.key_length", 1, kMaxHeadDim).value_or(head));
    h.value_length = static_cast<int32_t>(m.integer("attention.value_length", 1, kMaxHeadDim).value_or(head));
    const auto of_layer_norm = m.real("attention.layer_norm_epsilon", 0, 1);
    h.norm_epsilon = static_cast<float>(
        of_layer_norm ? m.real("attention.layer_norm_rms_epsilon", 0, 1).value_or(*of_layer_norm)
                      : m.required_real("attention.layer_norm_rms_epsilon", 0, 1));
    h.rope_dimensions =
        static_cast<int32_t>(m.integer("rope.dimension_count", 0, h.key_length).value_or(h.key_length));
    return h;
}

[[noreturn]] void refuse_architecture(const gguf::File &file, const std::string &architecture) {
    if (const auto kind = head_kind(file))
        throw ModelError(name_of(file) + ": " + std::string(head_title(*kind)) +
                         ", which drafts for another model and cannot run alone: use runnel run MODEL "
                         "--draft-model " +
                         name_of(file));
    const std::string what(other_architecture(architecture));
    throw ModelError(name_of(file) + ": architecture \"" + gguf::printable(architecture) + "\" is not " +
                     (what.empty() ? "known" : "supported: " + what) +
                     " (runnel inspect --supported lists all that are)");
}

}  // namespace

HyperParameters read_hyper_parameters(const gguf::File &file) {
    return read(file, Metadata(file));
}

HyperParameters read_hyper_parameters(const gguf::File &file, const Metadata &metadata) {
    return read(file, metadata);
}

Model build(const gguf::File &file, int64_t context) {
    std::vector<std::string> notes;
    return build(file, context, notes);
}

Model build(const gguf::File &file, int64_t context, std::vector<std::string> &notes) {
    const Metadata metadata(file);
    const Family *family = find_family(metadata.architecture());
    if (!family) refuse_architecture(file, metadata.architecture());
    if (file.tensors().empty())
        throw ModelError(name_of(file) + ": holds metadata only, no tensors: it can be inspected, not run");
    Builder builder(file, metadata, read(file, metadata), context);
    family->emit(builder);
    HyperParameters hyper = builder.hyper();
    apply_factors(file, builder);
    apply_rotation(file, builder);
    Model model{std::move(hyper), builder.take()};
    notes = check_unread_keys(metadata);
    return model;
}

const kernels::SlotInfo &state_of(const kernels::Program &block) {
    return block.slots[static_cast<size_t>(block.parts.front().out.front())];
}

size_t steps_to(const kernels::Program &program, kernels::Slot state) {
    size_t end = program.steps.size();
    while (end > 0 && !kernels::writes_slot(program.steps[end - 1], state)) --end;
    return end;
}

std::vector<kernels::Program> draft_blocks(const gguf::File &file, int64_t context) {
    const Metadata metadata(file);
    const Family *family = find_family(metadata.architecture());
    if (!family || !family->draft_block) return {};
    const HyperParameters hyper = read(file, metadata);
    std::vector<kernels::Program> blocks;
    for (int32_t i = 0; i < std::min(hyper.draft_layers, kMostDraftBlocks); ++i) {
        const int32_t layer = hyper.block_count + i;
        // Some files have the keys of the blocks only.
        if (!file.find_tensor("blk." + std::to_string(layer) + ".nextn.eh_proj.weight")) break;
        Builder builder(file, metadata, hyper, context);
        builder.use_draft_layer(layer);
        family->emit(builder);
        apply_factors(file, builder);
        apply_rotation(file, builder);
        blocks.push_back(builder.take());
        blocks.back().parts.front().end = blocks.back().steps.size();
    }
    return blocks;
}

std::vector<std::string_view> supported_architectures() {
    std::vector<std::string_view> names;
    for (const Family &f : families()) names.push_back(f.architecture);
    return names;
}

}  // namespace runnel::model
