#include "engine/model/other_architectures.h"

#include <algorithm>

namespace runnel::model {
namespace {

constexpr std::string_view
    kEncoder = "an encoder for embeddings, which generates no text; it needs bidirectional attention",
    kDiffusion = "a diffusion language model; it needs a decoder that fills in tokens in any order",
    kSound = "an audio model, which generates no text",
    kIndexer = "it needs sparse attention with an indexer";

constexpr OtherArchitecture kOthers[] = {
    {"bert", kEncoder},
    {"modern-bert", kEncoder},
    {"nomic-bert", kEncoder},
    {"nomic-bert-moe", kEncoder},
    {"neo-bert", kEncoder},
    {"jina-bert-v2", kEncoder},
    {"jina-bert-v3", kEncoder},
    {"eurobert", kEncoder},
    {"gemma-embedding", kEncoder},
    {"llama-embed", kEncoder},
    {"t5encoder", kEncoder},
    {"t5", "an encoder with a decoder; it needs cross-attention"},
    {"dream", kDiffusion},
    {"llada", kDiffusion},
    {"llada-moe", kDiffusion},
    {"rnd1", kDiffusion},
    {"wavtokenizer-dec", kSound},
    {"qwen3tts", kSound},
    {"pockettts", kSound},
    {"clip", "the image or audio part of another model, not a language model"},
    {"eagle3", "an EAGLE-3 head; it drafts for another model (--draft-model)"},
    {"dflash", "a DFlash drafter; it drafts for another model (--draft-model)"},
    {"gemma4-assistant", "a Gemma 4 assistant; it drafts for another model (--draft-model)"},
    {"kimi-k3", "a hybrid; it needs attention residuals and the activation SiTU"},
    {"dots3note", kIndexer},
    {"hy_v4", "it needs an indexer and hyper-connections"},
    {"glm5-next", "it needs an indexer and hyper-connections"},
    {"grovemoe", "a mixture of experts; it needs experts that share chunks"},
    {"graniteswitch", "it needs adapters selected by tokens"},
    {"hrm_text", "it needs cycles over stacks of layers"},
    {"chameleon", "it needs head norms with biases, and masked image tokens"},
    {"gptj", "a decoder that is not implemented"},
};

}  // namespace

std::span<const OtherArchitecture> other_architectures() {
    return kOthers;
}

std::string_view other_architecture(std::string_view name) {
    const auto found = std::find_if(std::begin(kOthers), std::end(kOthers),
                                    [&](const OtherArchitecture &other) { return other.name == name; });
    return found == std::end(kOthers) ? std::string_view() : found->what;
}

}  // namespace runnel::model
