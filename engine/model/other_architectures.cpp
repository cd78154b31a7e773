#include "engine/model/other_architectures.h"

#include <algorithm>

namespace runnel::model {
namespace {

constexpr std::string_view
    kEncoder = "an encoder for embeddings, which generates no text; it needs attention to later tokens",
    kDiffusion = "a diffusion language model; it needs a decoder that fills in tokens in any order",
    kSound = "a sound model, which generates no text", kDraft = "a draft model; it needs its target's states",
    kRwkv = "an RWKV model; it needs RWKV's time mixing",
    kKda = "a hybrid with Kimi delta attention, which is not computed",
    kIndexer = "it needs sparse attention with an indexer",
    kAlibi = "it needs attention biases by distance (ALiBi)",
    kHeadGates = "it needs a gate per attention head",
    kOldDecoder = "a decoder that this version does not know in detail",
    kMixture = "a mixture of experts that this version does not know in detail";

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
    {"t5", "an encoder with a decoder; it needs attention from one to the other"},
    {"dream", kDiffusion},
    {"llada", kDiffusion},
    {"llada-moe", kDiffusion},
    {"rnd1", kDiffusion},
    {"wavtokenizer-dec", kSound},
    {"qwen3tts", kSound},
    {"pockettts", kSound},
    {"clip", "the image or sound part of another model, no language model by itself"},
    {"eagle3", kDraft},
    {"dflash", kDraft},
    {"gemma4-assistant", kDraft},
    {"rwkv6", kRwkv},
    {"rwkv6qwen2", kRwkv},
    {"rwkv7", kRwkv},
    {"arwkv7", kRwkv},
    {"plamo2", "a hybrid of Mamba and attention; it needs PLaMo's tokenizer"},
    {"plamo3", "a decoder with windows; it needs PLaMo's tokenizer"},
    {"kimi-linear", kKda},
    {"kimi-k3", kKda},
    {"bailingmoe3", kKda},
    {"minimax-01", "a hybrid with lightning attention, which is not computed"},
    {"deepseek32", kIndexer},
    {"glm-dsa", kIndexer},
    {"dots3note", kIndexer},
    {"minimax-m3", "it needs attention to chosen blocks of keys"},
    {"deepseek4", "it needs compressed keys, hyper-connections and experts chosen by token"},
    {"hy_v4", "it needs an indexer and hyper-connections"},
    {"glm5-next", "it needs Kimi delta attention, an indexer and hyper-connections"},
    {"qwen4exp", "it needs an indexer, hyper-connections and a table of n-grams"},
    {"bloom", kAlibi},
    {"refact", kAlibi},
    {"jais", kAlibi},
    {"mpt", kAlibi},
    {"step35", kHeadGates},
    {"laguna", kHeadGates},
    {"spark2_5", kHeadGates},
    {"gemma3n", "it needs AltUp streams, Laurel and activation sparsity"},
    {"grovemoe", "a mixture of experts; it needs experts that share chunks"},
    {"graniteswitch", "it needs adapters that tokens choose"},
    {"hrm_text", "it needs cycles over stacks of layers"},
    {"maple", "a mixture of experts; it needs SwiGLU clamped in front of the activation"},
    {"nanbeige", "it needs layers that run several times"},
    {"talkie", "it needs gains per head and a stream of embeddings"},
    {"chameleon", "it needs norms per head with biases and tokens that are never chosen"},
    {"bitnet", "it needs norms in front of the output projections"},
    {"gptj", kOldDecoder},
    {"paddleocr", kOldDecoder},
    {"pangu-embedded", kOldDecoder},
    {"cogvlm", kOldDecoder},
    {"qwen", kOldDecoder},
    {"hunyuan_vl", kOldDecoder},
    {"plamo", kOldDecoder},
    {"maincoder", kOldDecoder},
    {"jais2", kOldDecoder},
    {"starcoder", kOldDecoder},
    {"codeshell", kOldDecoder},
    {"openelm", kOldDecoder},
    {"deepseek", kMixture},
    {"deepseek2-ocr", kMixture},
    {"bailingmoe", kMixture},
    {"mellum", kMixture},
    {"mimo2", kMixture},
    {"arctic", kMixture},
    {"mistral4", kMixture},
    {"plm", kOldDecoder},
    {"baichuan", kOldDecoder},
    {"olmo", "a decoder that needs clamped queries, keys and values"},
    {"dbrx", "a mixture of experts; it needs clamped queries, keys and values"},
    {"apertus", "a decoder that needs the activation xIELU"},
    {"smallthinker", "a mixture of experts; it needs ReLU"},
    {"grok", "a mixture of experts; it needs soft-capped scores of its own scale"},
    {"phimoe", "a mixture of experts; it needs layer norms and a router (SparseMixer) of its own"},
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
