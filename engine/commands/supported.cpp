// `inspect --supported`: lists what this program runs, and what it was compared with.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/cli/help.h"
#include "engine/commands/commands.h"
#include "engine/commands/json.h"
#include "engine/model/model.h"
#include "engine/text/pre_tokenizer.h"
#include "gguf/block.h"

namespace runnel::commands {
namespace {

// A comparison of a family with another program: both ran the same file, a model with random F32 weights, and
// their distributions were compared.
struct Verification {
    std::string_view family;  // an architecture, or one of its variants: "phi3, LongRoPE long"
    std::string_view peer;
    double mean_kl, largest_kl;  // nats per token
    double same_top;             // share of tokens with the same most probable next token
};
constexpr Verification kVerified[] = {
#include "engine/commands/verified_families.inc"
};

// Comparisons of a family in shapes that models seldom have.
struct OddShapes {
    std::string_view family;
    int count;
    double mean_kl;  // the largest of all shapes
};
constexpr OddShapes kOddShapes[] = {
#include "engine/commands/odd_shapes.inc"
};

std::string padded(std::string_view text, size_t width) {
    std::string out(text);
    out.resize(std::max(out.size() + 1, width), ' ');
    return out;
}

bool is_recorded(std::string_view architecture) {
    return std::ranges::any_of(kVerified,
                               [&](const Verification &row) { return row.family == architecture; });
}

std::string row_text(const Verification &row) {
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%8.1e  %8.1e  %7.2f%%", row.mean_kl, row.largest_kl,
                  100 * row.same_top);
    return "  " + padded(row.family, 28) + padded(row.peer, 18) + numbers + "\n";
}

std::vector<std::string_view> formats() {
    std::vector<std::string_view> names;
    for (uint32_t id = 0; id < gguf::kTypeIds; ++id) {
        const gguf::TypeTraits *type = gguf::find_type(id);
        const bool plain = type && (type->type == gguf::Type::F32 || type->type == gguf::Type::F16 ||
                                    type->type == gguf::Type::BF16);
        if (type && type->supported && (plain || type->quantized)) names.push_back(type->name);
    }
    return names;
}

std::string names_of(const text::PreTokenizerKind &kind) {
    std::string names;
    for (const std::string_view name : kind.names) names.append(names.empty() ? "" : ", ").append(name);
    return names;
}

constexpr std::string_view kRandomEvidence = "llama.cpp's ids of random texts";

std::string_view evidence_text(text::Evidence evidence) {
    switch (evidence) {
        case text::Evidence::Vectors:
            return "recorded ids of the models' tokenizers, and their published definition";
        case text::Evidence::Published:
            return "the models' published definition, run by Hugging Face's tokenizers";
        case text::Evidence::Peer:
            return "llama.cpp's definition, run by Hugging Face's tokenizers";
    }
    return {};
}

// Behavior of the tokenizer besides splitting by patterns and merging.
std::string traits_of(const text::PreTokenizerKind &kind) {
    std::string traits;
    const auto add = [&](bool has, const char *what) {
        if (has) traits.append(traits.empty() ? "" : ", ").append(what);
    };
    add(kind.normalizes, "NFC");
    add(kind.ignores_merges, "words in the vocabulary are one token");
    add(!kind.llama_patterns.empty(), "llama.cpp splits differently");
    return traits;
}

std::string tokenizers_text() {
    std::string text =
        "\ntokenizers (tokenizer.ggml.model, and for gpt2 tokenizer.ggml.pre), and what they were compared "
        "with\n";
    text += "\n  llama: SentencePiece BPE\n    recorded ids of the models' tokenizers\n";
    text += "  plamo2: unigram segmentation\n    " + std::string(kRandomEvidence) + "\n";
    text += "  rwkv: greedy segmentation\n    " + std::string(kRandomEvidence) + "\n";
    for (const text::PreTokenizerKind &kind : text::pre_tokenizer_kinds()) {
        const std::string traits = traits_of(kind);
        text += "  gpt2: " + names_of(kind) + (traits.empty() ? "" : " (" + traits + ")") + "\n    " +
                std::string(evidence_text(kind.evidence)) + "\n";
    }
    return text;
}

Json tokenizers_json() {
    Json list = Json::array();
    list.push_back({{"model", "llama"}, {"evidence", evidence_text(text::Evidence::Vectors)}});
    for (const char *model : {"plamo2", "rwkv"})
        list.push_back({{"model", model}, {"evidence", kRandomEvidence}});
    for (const text::PreTokenizerKind &kind : text::pre_tokenizer_kinds())
        list.push_back({{"model", "gpt2"},
                        {"pre", kind.names},
                        {"nfc", kind.normalizes},
                        {"whole_words", kind.ignores_merges},
                        {"llama_differs", kind.normalizes || !kind.llama_patterns.empty()},
                        {"evidence", evidence_text(kind.evidence)}});
    return list;
}

std::string odd_shapes_text() {
    std::map<int, std::vector<const OddShapes *>, std::greater<>> by_count;
    for (const OddShapes &row : kOddShapes) by_count[row.count].push_back(&row);
    std::string text =
        "\nshapes that models seldom have (one or three K/V heads, heads of 48, 80 and 96,\n"
        "5 or 12 experts, one to three layers), compared likewise\n";
    for (const auto &[count, rows] : by_count) {
        double largest = 0;
        std::string names;
        for (const OddShapes *row : rows) {
            largest = std::max(largest, std::abs(row->mean_kl));
            names.append(names.empty() ? "" : ", ").append(row->family);
        }
        char bound[64];
        std::snprintf(bound, sizeof bound, "%d %s each, mean KL at most %.1e: ", count,
                      count == 1 ? "shape" : "shapes", largest);
        text += "  " + wrapped(bound + names, 4, 78) + "\n";
    }
    return text;
}

void print_text(Io &io) {
    std::string text =
        "families, and how much their next-token distributions differ from a peer's on the same file of "
        "random "
        "F32\n"
        "weights (KL divergence in nats per token; how often the most likely token is the same)\n\n  " +
        padded("family", 28) + padded("peer", 18) + " mean KL    max KL   same top\n";
    for (const Verification &row : kVerified) text += row_text(row);
    for (const std::string_view name : model::supported_architectures())
        if (!is_recorded(name))
            text += "  " + padded(name, 28) +
                    "compared only with double precision: no peer's result is recorded\n";
    text += odd_shapes_text() + "\nformats of weights\n  ";
    for (const std::string_view name : formats()) text += std::string(name) + " ";
    text.back() = '\n';
    io.out.write(text + tokenizers_text());
}

void print_json(Io &io) {
    Json json{{"architectures", model::supported_architectures()}, {"formats", formats()}};
    json["tokenizers"] = tokenizers_json();
    json["verified"] = Json::array();
    for (const Verification &row : kVerified)
        json["verified"].push_back({{"family", row.family},
                                    {"peer", row.peer},
                                    {"mean_kl", row.mean_kl},
                                    {"max_kl", row.largest_kl},
                                    {"same_top", row.same_top}});
    json["odd_shapes"] = Json::array();
    for (const OddShapes &row : kOddShapes)
        json["odd_shapes"].push_back(
            {{"family", row.family}, {"shapes", row.count}, {"mean_kl", row.mean_kl}});
    io.out.write(dump(json, 2));
}

}  // namespace

int print_supported(bool as_json, Io &io) {
    as_json ? print_json(io) : print_text(io);
    return exit_code::kDone;
}

}  // namespace runnel::commands
