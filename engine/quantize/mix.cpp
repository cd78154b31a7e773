#include "engine/quantize/mix.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/quantize/role.h"
#include "gguf/printable.h"

namespace runnel::quantize {
namespace {

using gguf::Type;
using enum gguf::Type;

// clang-format off
constexpr Mix kMixes[] = {
    {"F32", 0, F32},        {"F16", 1, F16},         {"BF16", 32, BF16},     {"Q4_0", 2, Q4_0},
    {"Q4_1", 3, Q4_1},      {"Q5_0", 8, Q5_0},       {"Q5_1", 9, Q5_1},      {"Q8_0", 7, Q8_0},
    {"Q2_K", 10, Q2_K},     {"Q2_K_S", 21, Q2_K},    {"Q3_K_S", 11, Q3_K},   {"Q3_K_M", 12, Q3_K},
    {"Q3_K_L", 13, Q3_K},   {"Q4_K_S", 14, Q4_K},    {"Q4_K_M", 15, Q4_K},   {"Q5_K_S", 16, Q5_K},
    {"Q5_K_M", 17, Q5_K},   {"Q6_K", 18, Q6_K},      {"IQ1_S", 24, IQ1_S},   {"IQ1_M", 31, IQ1_M},
    {"IQ2_XXS", 19, IQ2_XXS}, {"IQ2_XS", 20, IQ2_XS}, {"IQ2_S", 28, IQ2_XS}, {"IQ2_M", 29, IQ2_S},
    {"IQ3_XXS", 23, IQ3_XXS}, {"IQ3_XS", 22, IQ3_S}, {"IQ3_S", 26, IQ3_S},   {"IQ3_M", 27, IQ3_S},
    {"IQ4_NL", 25, IQ4_NL}, {"IQ4_XS", 30, IQ4_XS},  {"TQ1_0", 36, TQ1_0},   {"TQ2_0", 37, TQ2_0},
    {"MXFP4_MOE", 38, MXFP4}, {"NVFP4", 39, NVFP4},    {"Q1_0", 40, Q1_0},      {"Q2_0", 41, Q2_0},
    {"PQ2_0", 141, PQ2_0},  {"PTQ1_0", 143, PTQ1_0},
};
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"Q3_K", "Q3_K_M"}, {"Q4_K", "Q4_K_M"}, {"Q5_K", "Q5_K_M"}, {"MXFP4", "MXFP4_MOE"}};
// Parts of names that are never quantized.
constexpr std::string_view kKept[] = {
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight",
    "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight"};
constexpr std::string_view kKeptNames[] = {"position_embd.weight", "token_types.weight"};
// clang-format on

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

std::string lower(std::string_view text) {
    std::string result(text);
    for (char &c : result)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return result;
}

// The first and last eighth of `count` layers, and every third between them.
bool gets_more(int64_t i, int64_t count) {
    const int64_t eighth = count / 8;
    return i < eighth || i >= 7 * count / 8 || (i - eighth) % 3 == 2;
}

// Chooses the types of one model's tensors, in the order they are written: some rules count tensors.
class Chooser {
  public:
    Chooser(const Mix &mix, const ModelShape &model, bool has_importance, int64_t value_tensors, bool tied)
        : mix_(mix),
          model_(model),
          has_importance_(has_importance),
          value_tensors_(value_tensors),
          tied_(tied),
          is_low_(is_one_of(mix.name, {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})),
          sharing_(model.kv_heads > 0 ? model.heads / model.kv_heads : 0),
          is_falcon_(model.architecture == "falcon") {}

    Type choose(const TensorShape &tensor) {
        const Role role = role_of(tensor.name);
        if (role == Role::Output || (role == Role::Embedding && tied_)) return output(tensor);
        if (mix_.name == "MXFP4_MOE") return tensor.shape[2] > 1 ? MXFP4 : Q8_0;
        switch (role) {
            case Role::Embedding:
                return embedding();
            case Role::Value:
                return value();
            case Role::Key:
                return key();
            case Role::Query:
                return is("IQ3_XS") ? IQ3_XXS : is("IQ3_XXS") ? IQ2_S : mix_.base;
            case Role::AttentionOutput:
                return attention_output();
            case Role::Up:
                return wide(position(tensor, ups_++));
            case Role::Gate:
                return wide(position(tensor, gates_++));
            case Role::Down:
                return down(tensor);
            default:
                return mix_.base;
        }
    }

  private:
    bool is(std::string_view name) const { return mix_.name == name; }
    bool is_any(std::initializer_list<std::string_view> names) const { return is_one_of(mix_.name, names); }
    bool is_iq2_sm() const { return is_any({"IQ2_S", "IQ2_M"}); }

    // With experts, some layers may lack the tensor, so its layer number is used instead of a count.
    int64_t position(const TensorShape &tensor, int64_t count) const {
        return model_.experts > 1 ? layer_of(tensor.name) : count;
    }

    Type output(const TensorShape &tensor) const {
        if (is("MXFP4_MOE") || is_falcon_ || tensor.shape[0] % gguf::traits(mix_.base).block_size != 0)
            return Q8_0;
        if (is_low_ || is("IQ3_XXS")) return Q5_K;
        return mix_.base == Q8_0 ? Q8_0 : Q6_K;
    }

    Type embedding() const {
        if (is_any({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"})) return Q2_K;
        if (is_any({"IQ2_S", "IQ2_M", "IQ3_XXS"})) return IQ3_S;
        if (is_any({"TQ1_0", "TQ2_0", "Q2_0", "PQ2_0", "PTQ1_0"})) return Q4_K;
        return mix_.base;
    }

    Type value() {
        const int64_t i = values_++;
        if (is_low_) {
            if (sharing_ >= 4 || model_.experts >= 4) return Q4_K;
            return is_iq2_sm() ? IQ3_S : Q2_K;
        }
        Type type = mix_.base;
        if (is("Q2_K"))
            type = sharing_ >= 4 ? Q4_K : Q3_K;
        else if (is_any({"Q2_K_S", "IQ3_XS", "IQ3_S"}))
            type = sharing_ >= 4 ? Q4_K : mix_.base;
        else if (is("IQ3_XXS"))
            type = sharing_ >= 4 ? Q4_K : has_importance_ ? mix_.base : IQ3_S;
        else if (is("IQ3_M"))
            type = Q4_K;
        else if (is("Q3_K_M"))
            type = i < 2 ? Q5_K : Q4_K;
        else if (is("Q3_K_L"))
            type = Q5_K;
        else if (is_any({"IQ4_NL", "IQ4_XS"}))
            type = sharing_ >= 4 ? Q5_K : mix_.base;
        else if (is_any({"Q4_K_M", "Q5_K_M"}))
            type = gets_more(i, value_tensors_) ? Q6_K : mix_.base;
        else if (is("Q4_K_S"))
            type = i < 4 ? Q5_K : mix_.base;
        if (is_70b() && (type == Q3_K || type == Q4_K)) type = Q5_K;
        return model_.experts == 8 ? Q8_0 : type;
    }

    // In these models many query heads share a value head, so values get more bits.
    bool is_70b() const {
        const std::string &arch = model_.architecture;
        if (arch == "llama") return model_.layers == 80 && model_.heads != model_.kv_heads;
        if (is_one_of(arch, {"qwen2", "deci", "olmo"})) return model_.layers == 80;
        return arch == "jais2" && model_.layers == 68;
    }

    Type key() const {
        if (is_low_) return model_.experts == 8 ? Q4_K : mix_.base;
        if (model_.experts == 8) return Q8_0;
        return is("IQ3_XS") ? IQ3_XXS : is("IQ3_XXS") ? IQ2_S : mix_.base;
    }

    Type attention_output() const {
        if (is_low_) {
            if (model_.experts == 8) return Q5_K;
            return is_any({"IQ1_S", "IQ1_M"}) ? IQ2_XXS : is_iq2_sm() ? IQ3_S : mix_.base;
        }
        if (is_falcon_) return is("Q3_K_L") ? Q4_K : mix_.base;
        if (model_.experts == 8)
            return is_any({"Q2_K", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "Q3_K_S", "Q3_K_M", "Q4_K_S",
                           "Q4_K_M", "IQ4_NL", "IQ4_XS"})
                       ? Q5_K
                       : mix_.base;
        if (is("Q2_K")) return Q3_K;
        if (is("IQ3_XXS")) return IQ3_S;
        if (is_any({"Q3_K_M", "IQ3_M"})) return Q4_K;
        return is("Q3_K_L") ? Q5_K : mix_.base;
    }

    // The type of gate and up matrices.
    Type wide(int64_t i) const {
        const bool middle = i >= model_.layers / 8 && i < 7 * model_.layers / 8;
        return is("IQ3_XS") && middle ? IQ3_XXS : mix_.base;
    }

    Type down(const TensorShape &tensor) {
        const int64_t count = downs_++, layers = model_.layers;
        if (is_low_) return count < layers / 8 ? (is_iq2_sm() ? IQ3_S : Q2_K) : mix_.base;
        const int64_t i = position(tensor, count);
        const bool early = i < layers / 8;
        if (is("Q2_K")) return Q3_K;
        if (is("Q2_K_S")) return early ? Q4_K : mix_.base;
        if (is("IQ3_XXS") && !has_importance_) return early ? Q4_K : Q3_K;
        if (is("Q3_K_M")) {
            if (i < layers / 16) return Q5_K;
            return !is_falcon_ || gets_more(i, layers) ? Q4_K : Q3_K;
        }
        if (is("Q3_K_L")) return is_falcon_ ? Q4_K : Q5_K;
        if (is("IQ3_M")) return early || (model_.experts == 8 && gets_more(i, layers)) ? Q4_K : mix_.base;
        if (is("Q4_K_M") && is_falcon_) return i < layers / 16 ? Q6_K : gets_more(i, layers) ? Q5_K : Q4_K;
        if (is_any({"Q4_K_M", "Q5_K_M"})) return gets_more(i, layers) ? Q6_K : mix_.base;
        if (is("Q4_K_S")) return !is_falcon_ && early ? Q5_K : mix_.base;
        if (is_any({"IQ4_NL", "IQ4_XS"}) && !has_importance_) return early ? Q5_K : mix_.base;
        if (has_importance_ && early && is("Q4_0")) return Q4_1;
        if (has_importance_ && early && is("Q5_0")) return Q5_1;
        return mix_.base;
    }

    const Mix &mix_;
    const ModelShape &model_;
    bool has_importance_;
    int64_t value_tensors_;
    bool tied_, is_low_;
    int64_t sharing_;  // query heads per K/V head
    bool is_falcon_;
    int64_t values_ = 0, downs_ = 0, ups_ = 0, gates_ = 0;  // so far
};

// The type to use if the columns are not a multiple of the type's block.
Type narrower(Type type) {
    switch (type) {
        case IQ1_S:
        case IQ1_M:
        case IQ2_XXS:
        case IQ2_XS:
        case IQ2_S:
        case IQ3_XXS:
        case IQ3_S:
        case IQ4_XS:
            return IQ4_NL;
        case Q2_K:
        case Q3_K:
        case TQ1_0:
        case TQ2_0:
        case Q1_0:
        case Q2_0:
        case PQ2_0:
        case PTQ1_0:
            return Q4_0;
        case Q4_K:
            return Q5_0;
        case Q5_K:
            return Q5_1;
        case Q6_K:
            return Q8_0;
        default:
            return F16;
    }
}

void fit_columns(const TensorShape &tensor, Choice &choice) {
    const Type wanted = choice.type;
    while (tensor.shape[0] % gguf::traits(choice.type).block_size != 0) choice.type = narrower(choice.type);
    if (choice.type != wanted)
        choice.note = std::to_string(tensor.shape[0]) + " columns are not a multiple of " +
                      std::to_string(gguf::traits(wanted).block_size) + ": not " +
                      std::string(gguf::traits(wanted).name);
}

std::vector<size_t> writing_order(std::span<const TensorShape> tensors) {
    std::vector<size_t> order(tensors.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        const int64_t layer_a = layer_of(tensors[a].name), layer_b = layer_of(tensors[b].name);
        return layer_a != layer_b ? layer_a < layer_b : tensors[a].name < tensors[b].name;
    });
    return order;
}

}  // namespace

std::span<const Mix> mixes() {
    return kMixes;
}

const Mix *find_mix(std::string_view name) {
    std::string wanted = lower(name);
    for (const auto &[alias, meaning] : kAliases)
        if (lower(alias) == wanted) wanted = lower(meaning);
    for (const Mix &mix : kMixes)
        if (lower(mix.name) == wanted) return &mix;
    return nullptr;
}

bool is_quantizable(const TensorShape &tensor) {
    if (tensor.shape[1] == 1 && tensor.shape[2] == 1 && tensor.shape[3] == 1) return false;
    if (!tensor.name.ends_with("weight")) return false;
    for (const std::string_view kept : kKeptNames)
        if (tensor.name == kept) return false;
    for (const std::string_view part : kKept)
        if (tensor.name.find(part) != tensor.name.npos) return false;
    return true;
}

bool needs_importance(Type type, const Mix &mix) {
    return type == IQ1_S || type == IQ1_M || type == IQ2_XXS || type == IQ2_XS || type == IQ2_S ||
           type == IQ3_XXS || (type == Q2_K && mix.name == "Q2_K_S");
}

std::vector<Choice> choose_types(const Mix &mix, const ModelShape &model,
                                 std::span<const TensorShape> tensors, const MixOptions &options) {
    const std::vector<size_t> order = writing_order(tensors);
    int64_t values = 0;
    bool tied = true;
    for (const TensorShape &tensor : tensors) {
        if (role_of(tensor.name) == Role::Value) ++values;
        if (tensor.name == "output.weight") tied = false;
    }
    const bool floats = mix.base == F32 || mix.base == F16 || mix.base == BF16;
    Chooser chooser(mix, model, options.has_importance, values, tied);
    std::vector<Choice> choices;
    for (const size_t index : order) {
        const TensorShape &tensor = tensors[index];
        const Role role = role_of(tensor.name);
        Choice choice{index, tensor.type};
        if (is_quantizable(tensor) && !(role == Role::Output && options.leave_output)) {
            const std::string name = lower(tensor.name);
            const auto wish = std::find_if(options.overrides.begin(), options.overrides.end(),
                                           [&](const auto &o) { return std::regex_search(name, o.first); });
            if (role == Role::Embedding && options.embedding) {
                choice.type = *options.embedding;
            } else if ((role == Role::Output || (role == Role::Embedding && tied)) && options.output) {
                choice.type = *options.output;
            } else if (floats) {
                choice.type = wish != options.overrides.end() ? wish->second : mix.base;
            } else {
                // The rules count every tensor, even if an override gives it another type.
                const Type by_mix = chooser.choose(tensor);
                choice.type = wish != options.overrides.end() ? wish->second
                              : options.pure                  ? mix.base
                                                              : by_mix;
            }
            fit_columns(tensor, choice);
        }
        choices.push_back(std::move(choice));
    }
    return choices;
}

}  // namespace runnel::quantize
